"""Tables and figures of a plan for its page."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from amprewrite.page.model import Cell, Column, Fact, Share, Table
from amprewrite.plan.model import Plan
from amprewrite.plan.overview.lowerings import lowering_line

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
