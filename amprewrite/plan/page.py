"""Page of a plan."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amprewrite.dtypes import is_float
from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import (
    Cell,
    Column,
    Conversion,
    Edge,
    Fact,
    Graph,
    Node,
    Page,
    Share,
    Table,
)
from amprewrite.plan.lines import lowering_line
from amprewrite.plan.model import OUTPUT, Cast, Plan
from amprewrite.plan.validation.fingerprint import Lines, LineValue, read_programs

# The program of a plan as a graph: ops, values between them, casts.

END = "(output)"
"""Name of the node of the outputs."""

MOST_INPUTS = 12
"""Most inputs that are drawn; a JAX function takes its weights as inputs."""


def plan_graph(
    plan: Plan,
    shares: Mapping[str, float] | None = None,
    marked: Collection[str] = (),
) -> Graph:
    """Return the graph of the program that ``plan`` is for.

    Args:
        plan: The plan.
        shares: Share of each op in the error, by name; None if unknown.
        marked: Ops to draw attention to.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    parts = [
        _Part(plan, part, at) for at, part in enumerate(read_programs(plan.program))
    ]
    several = len(parts) > 1
    uses = {
        use: at
        for at, cast in enumerate(plan.casts)
        for use in cast.uses
        if use[0] != OUTPUT or not several
    }
    inputs = {name: value for part in parts for name, value in part.inputs()}
    drawn = inputs if len(inputs) <= MOST_INPUTS else {}
    nodes = [
        Node(name, name.lstrip("%"), value.dtype, kind="input")
        for name, value in drawn.items()
    ]
    nodes += [
        Node(
            d.op,
            d.canonical,
            d.precision,
            d.path,
            share=None if shares is None else shares.get(d.op, 0.0),
            marked=d.op in marked,
            quiet=not any(map(is_float, (*d.operands, *d.results))),
        )
        for d in plan.decisions
    ]
    edges = [edge for part in parts for edge in part.edges(uses, drawn)]
    if plan.outputs:
        dtypes = dict.fromkeys(plan.outputs)
        nodes.append(Node(END, "output", ", ".join(dtypes), kind="output"))
        edges += [edge for part in parts for edge in part.ends(uses, drawn)]
    known = {node.name for node in nodes}
    lead = "Boxes are ops, coloured by the precision that they compute in."
    if not edges:
        lead += " This plan does not hold its program, so that no values are drawn."
    elif len(inputs) > MOST_INPUTS:
        lead += f" Its {len(inputs)} inputs are left out."
    return Graph(
        tuple(nodes),
        tuple(edges),
        tuple(_conversion(cast, known) for cast in plan.casts),
        lead,
    )


@dataclass(frozen=True)
class _Part:
    """One program of a plan; a joined plan has several, and numbers their names."""

    plan: Plan
    lines: Lines
    number: int

    def named(self, name: str) -> str:
        """Return the name that the plan has for an op of this program."""
        joined = f"graph{self.number}.{name}"
        known = self.plan.by_op
        return joined if joined in known and name not in known else name

    def makers(self) -> dict[str, str]:
        """Return the op that makes each value."""
        return {
            value.name: self.named(op.name)
            for op in self.lines.ops
            for value in op.results
        }

    def inputs(self) -> Iterator[tuple[str, LineValue]]:
        """Yield the node of each input that is read, with its value."""
        read = (value for op in self.lines.ops for value in op.operands)
        for value in (*read, *self.lines.end.outputs):
            if value.kind == "input":
                yield f"%{value.name}", value

    def edges(
        self, casts: Mapping[tuple[str, int], int], inputs: Collection[str]
    ) -> Iterator[Edge]:
        """Yield the uses of values by ops."""
        makers = self.makers()
        for op in self.lines.ops:
            name = self.named(op.name)
            decision = self.plan.by_op.get(name)
            if decision is None:
                continue
            for index, value in enumerate(op.operands):
                source = makers.get(value.name, f"%{value.name}")
                read = decision.operands[index : index + 1] or (value.dtype,)
                if source in inputs or value.name in makers:
                    yield Edge(source, name, read[0], casts.get((name, index)))

    def ends(
        self, casts: Mapping[tuple[str, int], int], inputs: Collection[str]
    ) -> Iterator[Edge]:
        """Yield the uses of values as outputs."""
        makers = self.makers()
        for index, value in enumerate(self.lines.end.outputs):
            source = makers.get(value.name, f"%{value.name}")
            if source not in inputs and value.name not in makers:
                continue
            returned = self.plan.outputs[index : index + 1] or (value.dtype,)
            yield Edge(source, END, returned[0], casts.get((OUTPUT, index)))


def _conversion(cast: Cast, known: Collection[str]) -> Conversion:
    """Return a cast as drawn; a source that is no node is left out."""
    source = cast.producer or f"%{cast.value}"
    targets = (END if name == OUTPUT else name for name in cast.consumers)
    return Conversion(
        cast.value,
        source if source in known else "",
        tuple(name for name in targets if name in known),
        cast.from_dtype,
        cast.to_dtype,
        cast.bytes,
        cast.folding or ("kernel" if cast.folded else ""),
        cast.is_weight,
    )


# Tables and figures of a plan for its page.

Extra = tuple[Column, Mapping[str, Cell]]
"""A further column of the table of ops, with its cells by the ops' names."""

_OPS = (
    Column("op", "code", "Name in the plan; plan.explain(name) gives the reason"),
    Column("computes", "dtype", "Precision that it computes in"),
    Column("class", "text", "Class by the policy: allow, deny, promote, ..."),
    Column("module", "path", "Path of its module"),
    Column("why", "text", "Reason for its precision"),
    Column("source", "code", "Line of the model"),
)
_HIDDEN = (
    Column("name in policies", "code", hidden=True),
    Column("native", "code", hidden=True),
    Column("by", "code", "Rule of the policy", hidden=True),
    Column("because of", "code", "Ops that forced the precision", hidden=True),
    Column("reads", "dtype", hidden=True),
    Column("makes", "dtype", hidden=True),
    Column("sums in", "dtype", hidden=True),
    Column("derivatives in", "dtype", hidden=True),
    Column("8 bits", "dtype", hidden=True),
)


def ops_table(plan: Plan, extras: Sequence[Extra] = ()) -> Table:
    """Return one row for each op, with ``extras`` after its precision."""
    first, rest = _OPS[:2], _OPS[2:]
    columns = (*first, *(column for column, _ in extras), *rest, *_HIDDEN)
    rows: list[tuple[Cell, ...]] = []
    for d in plan.decisions:
        measured = (cells.get(d.op) for _, cells in extras)
        shown = (d.op_class, d.path, d.why, d.source)
        hidden = (
            d.canonical,
            d.native,
            d.rule,
            " <- ".join(d.causes),
            ", ".join(d.operands),
            ", ".join(d.results),
            d.accumulator,
            d.derivative,
            ", ".join(filter(None, (d.forward, d.backward))),
        )
        rows.append((d.op, d.precision, *measured, *shown, *hidden))
    lead = "A row that is selected is shown in the graph, with all that is known of it."
    return Table("Ops", columns, tuple(rows), lead, "ops")


def casts_table(plan: Plan) -> Table:
    """Return one row for each cast, the heaviest first."""
    columns = (
        Column("value", "code", "Value that is cast"),
        Column("cast", "dtype", "Dtype before and after"),
        Column("bytes", "bytes", "Bytes read and written at run time"),
        Column("for", "code", "Ops that read it"),
        Column("free by", "text", "Way in which it costs nothing at run time"),
        Column("module", "path", "Module of the first of them"),
        Column("why", "text", "Reason"),
    )
    rows = tuple(
        (
            cast.value,
            f"{cast.from_dtype} -> {cast.to_dtype}",
            cast.bytes,
            ", ".join(cast.consumers),
            cast.folding,
            cast.path,
            cast.why,
        )
        for cast in plan.casts
    )
    lead = (
        "Casts that run cost bytes; those of weights are done once where the "
        "parameters are stored low."
    )
    return Table("Casts", columns, rows, lead, "casts", sort="bytes")


def lowerings_table(plan: Plan) -> Iterator[Table]:
    """Yield the table of the lowering of calls, if there is a record."""
    columns = (
        Column("pass", "code", "Pass of the lowering"),
        Column("ops", "code", "Ops that it concerns"),
        Column("done", "text", "What was done with them"),
        Column("bytes", "bytes", "Bytes that are kept for it"),
    )
    rows = tuple((x.name, ", ".join(x.ops), x.what, x.bytes) for x in plan.lowerings)
    lead = (
        "Eager calls run the program in fewer and cheaper steps; the graph, the ops "
        "and the casts above are those of the plan."
    )
    if rows:
        yield Table("Lowered", columns, rows, lead, "lowered")


def shares(plan: Plan) -> tuple[Share, ...]:
    """Return the number of ops in each precision, the most frequent first."""
    counts = Counter(decision.precision for decision in plan.decisions)
    return tuple(Share(dtype, count) for dtype, count in counts.most_common())


def plan_facts(plan: Plan) -> Iterator[Fact]:
    """Yield the figures of the summary."""
    total, low = len(plan.decisions), len(plan.lowered)
    yield Fact(
        f"ops in {plan.low or 'low precision'}",
        f"{low:,} of {total:,}",
        f"policy {plan.policy}, placement {plan.placement}",
        "bad" if plan.low and not low else "",
    )
    run = plan.runtime_casts
    yield Fact(
        "casts at run time",
        f"{len(run):,}",
        f"{plan.cost.cast_bytes:,} bytes read and written",
    )
    weights = [cast for cast in plan.casts if cast.is_weight]
    stored = sum(cast.folded for cast in weights)
    yield Fact(
        "weights cast",
        f"{len(weights):,}",
        f"{stored:,} once, {len(weights) - stored:,} at each run",
    )
    if plan.quantised:
        yield Fact("contractions in 8 bits", f"{len(plan.quantised):,}")
    if plan.predicted_error is not None:
        bound = "" if plan.tolerance is None else f"tolerance {plan.tolerance:.2g}"
        yield Fact("predicted error", f"{plan.predicted_error:.2g}", bound)
    if plan.lowerings:
        count = len({op for found in plan.lowerings for op in found.ops})
        did = lowering_line(plan.lowerings)
        yield Fact("ops lowered in calls", f"{count:,}", did)
    if plan.unclassified:
        yield Fact("unclassified ops", f"{len(plan.unclassified):,}", "run as traced")


def difference_tables(plan: Plan, other: Plan) -> Iterator[Table]:
    """Yield the figures of two plans side by side, and their differences."""
    yield Table(
        "Two plans",
        (Column("figure"), Column("this plan"), Column("the other")),
        tuple(_figures(plan, other)),
        key="two-plans",
    )
    lines = [line.partition(": ") for line in plan.diff(other)]
    yield Table(
        "Differences",
        (Column("where", "code"), Column("this plan -> the other")),
        tuple((where, text) for where, _, text in lines),
        "Ops and casts in which the two plans differ; outlined in red in the graph."
        if lines
        else "The two plans decide the same.",
        "differences",
    )


def differing_ops(plan: Plan, other: Plan) -> frozenset[str]:
    """Return the ops of ``plan`` about which ``other`` decides otherwise."""
    named = {line.partition(": ")[0] for line in plan.diff(other)}
    return frozenset(named & plan.by_op.keys())


def _figures(plan: Plan, other: Plan) -> Iterator[tuple[Cell, ...]]:
    def row(title: str, *found: object) -> tuple[Cell, ...]:
        return (title, *(f"{x:,}" if isinstance(x, int) else str(x) for x in found))

    both = (plan, other)
    yield row("policy", *(p.policy for p in both))
    yield row("placement", *(p.placement for p in both))
    yield row("low precision", *(p.low or "none" for p in both))
    yield row("ops", *(len(p.decisions) for p in both))
    yield row("ops lowered", *(len(p.lowered) for p in both))
    yield row("casts at run time", *(len(p.runtime_casts) for p in both))
    yield row("bytes of casts", *(p.cost.cast_bytes for p in both))
    yield row("bytes of all, by the prices", *(p.cost.total_bytes for p in both))
    errors = [p.predicted_error for p in both]
    if any(error is not None for error in errors):
        words = ("unknown" if error is None else f"{error:.3g}" for error in errors)
        yield row("predicted error", *words)


def plan_page(  # noqa: PLR0913  # the plan, and all that is shown with it
    plan: Plan,
    *,
    title: str = "",
    against: Plan | None = None,
    exponents: Iterable[Exponents] = (),
    columns: Sequence[Extra] = (),
    error_shares: Mapping[str, float] | None = None,
    faults: Collection[str] = (),
) -> Page:
    """Return the page of a plan.

    Args:
        plan: The plan.
        title: Its title; by default names the policy.
        against: Another plan for the same model, to be compared with.
        exponents: Histograms of exponents to draw.
        columns: Further columns of the table of ops: measurements of them.
        error_shares: Share of each op in the error, by name; None if unknown.
        faults: Ops to draw attention to.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    marked = set(faults)
    if against is not None:
        marked |= differing_ops(plan, against)
    return Page(
        title=title or f"Plan {plan.policy}",
        lead=f"policy {plan.policy}, placement {plan.placement}; {plan.captured}",
        facts=tuple(plan_facts(plan)),
        shares=shares(plan),
        notes=plan.warnings,
        before=() if against is None else tuple(difference_tables(plan, against)),
        graph=plan_graph(plan, error_shares, marked),
        tables=(
            ops_table(plan, columns),
            casts_table(plan),
            *lowerings_table(plan),
        ),
        histograms=as_histograms(exponents),
    )
