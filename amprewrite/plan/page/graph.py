"""The program of a plan as a graph: ops, values between them, casts."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from amprewrite.dtypes import is_float
from amprewrite.page.model import Conversion, Edge, Graph, Node
from amprewrite.plan.model import OUTPUT, Cast, Plan
from amprewrite.plan.validation.program_lines import Lines, LineValue, read_programs

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
