"""The invariants of a program graph, numbered; passes may rely on them."""

from collections.abc import Callable, Iterator

from amprewrite.errors import GraphError
from amprewrite.ir.graph import REGION_BOUNDARIES, Op, ProgramGraph


def _defined_before_use(graph: ProgramGraph) -> Iterator[str]:
    known = {value.name for value in graph.inputs()}
    for op in graph.ops:
        for operand in op.operands:
            if operand not in known:
                yield f"{op.name} reads %{operand}, which is not defined before it"
        known.update(op.results)
    for output in graph.outputs:
        if output not in known:
            yield f"output %{output} is not defined"


def _assigned_once(graph: ProgramGraph) -> Iterator[str]:
    makers: dict[str, str] = {}
    for op in graph.ops:
        for result in op.results:
            if result in makers:
                yield f"%{result} is made by {makers[result]} and by {op.name}"
            makers[result] = op.name
    for value in graph.values.values():
        if value.kind != "result" and value.name in makers:
            maker = makers[value.name]
            yield f"%{value.name} is of kind {value.kind} and made by {maker}"
        if value.kind == "result" and value.name not in makers:
            yield f"%{value.name} is a result that no op makes"


def _unique_op_names(graph: ProgramGraph) -> Iterator[str]:
    seen: set[str] = set()
    for op in graph.ops:
        if op.name in seen:
            yield f"two ops are called {op.name}"
        seen.add(op.name)


def _declared(graph: ProgramGraph) -> Iterator[str]:
    for op in graph.ops:
        for name in (*op.operands, *op.results):
            if name not in graph.values:
                yield f"{op.name} names %{name}, which has no value entry"
    for name, value in graph.values.items():
        if name != value.name:
            yield f"%{value.name} is entered under the name %{name}"


def _indices_in_range(graph: ProgramGraph) -> Iterator[str]:
    for op in graph.ops:
        for index in (*op.mutates, *op.masks):
            if not 0 <= index < len(op.operands):
                yield f"{op.name} has no operand {index}; it has {len(op.operands)}"


def _reads_fit(graph: ProgramGraph) -> Iterator[str]:
    for op in graph.ops:
        if op.reads and len(op.reads) != len(op.operands):
            yield f"{op.name} has {len(op.operands)} operands and reads {op.reads}"


def _aliases_are_roots(graph: ProgramGraph) -> Iterator[str]:
    for value in graph.values.values():
        root = graph.values.get(value.alias)
        if root is None:
            yield f"%{value.name} shares the storage of unknown %{value.alias}"
        elif root.alias != root.name:
            yield f"%{value.name} aliases %{root.name}, which is itself an alias"


def _states_replace_inputs(graph: ProgramGraph) -> Iterator[str]:
    inputs = {value.name for value in graph.inputs()}
    for index, name in graph.states:
        if not 0 <= index < len(graph.outputs):
            yield f"there is no output {index} to replace %{name}"
        if name not in inputs:
            yield f"output {index} replaces %{name}, which is no input"


def _trips_agree(graph: ProgramGraph) -> Iterator[str]:
    known: dict[str, Op] = {}
    for op in graph.ops:
        if op.trips < 0:
            yield f"{op.name} runs {op.trips} times"
        if op.canonical in REGION_BOUNDARIES:
            continue
        first = known.setdefault(op.region, op)
        if first.trips != op.trips:
            where = op.region or "the top level"
            yield (
                f"{op.name} runs {op.trips} times in {where}, where {first.name} "
                f"runs {first.trips} times"
            )


INVARIANTS: tuple[tuple[str, Callable[[ProgramGraph], Iterator[str]]], ...] = (
    ("I1 every name is declared", _declared),
    ("I2 values are assigned once", _assigned_once),
    ("I3 values are defined before they are read", _defined_before_use),
    ("I4 op names are unique", _unique_op_names),
    ("I5 operand indices are in range", _indices_in_range),
    ("I6 an alias names the owner of the storage", _aliases_are_roots),
    ("I7 reads says it of every operand, or of none", _reads_fit),
    ("I8 a state is an output that replaces an input", _states_replace_inputs),
    ("I9 ops of one body run equally often", _trips_agree),
)


def check_graph(graph: ProgramGraph) -> ProgramGraph:
    """Return ``graph`` if it keeps all invariants.

    Raises:
        GraphError: Names the first invariant that is broken and where. A graph made
            by one of this package's readers never breaks one: please report it.
    """
    for title, invariant in INVARIANTS:
        for mistake in invariant(graph):
            msg = f"program graph breaks {title}: {mistake}"
            raise GraphError(msg)
    return graph
