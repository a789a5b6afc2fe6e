"""Program graph: the values and ops of a program, with the facts for placing casts.

A reader builds the graph, passes read it, and it is immutable. It holds no tensors.
Bodies are flattened into the op list and tagged with their ``region``. Values that
enter and leave a body that runs once in place (a ``no_grad`` block, an activation
checkpoint) are the outer values themselves, so that demand and casts pass through it.
Into the body of a loop, a branch or a custom rule values pass by ops of their own, see
:data:`REGION_BOUNDARIES`; those that enter a body precede its ops, and those that leave
it follow them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Literal

from amprewrite.dtypes import is_float, itemsize
from amprewrite.errors import GraphError
from amprewrite.ops import OperandRule, OpTraits, traits_of
from amprewrite.runtime.fast_init import fast_init

if TYPE_CHECKING:
    import networkx as nx


ValueKind = Literal["input", "parameter", "buffer", "constant", "result"]
Chosen = Literal["", "pinned", "follows"]

States = tuple[tuple[int, str], ...]
"""Outputs that replace inputs: position of the output and name of the input."""

ABS_SQUARE = "abs_square"
"""Canonical name of ``x * x`` in a norm of complex numbers, computed as ``|x|**2``."""

REGION_BOUNDARIES = {
    "enter": "an operand of a branch, or a constant or slice of a loop: the same value",
    "leave": "a result of a branch, or of all iterations of a loop: the same value",
    "carry": "a loop reads and writes it each time, so it has one dtype throughout",
    "boundary": "a custom rule is written for the dtype that was traced",
}
"""Canonical ops that pass a value into or out of a body, each with its meaning."""

UNKNOWN_TRIPS = 10
"""Trip count assumed for a loop of unknown length; source: GCC's avg-loop-niter."""


@fast_init
@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program, assigned once (SSA).

    Attributes:
        name: Unique in the graph.
        dtype: Name of the dtype it was traced with.
        shape: Extents; a symbolic extent is its expression as a string.
        kind: Origin of the value: an input, parameter, constant, ... or an op's result.
        alias: Name of the value that owns its storage; its own name if it is no view.
        numbers: Numbers that a constant or a buffer has and a narrow format has not:
            :func:`amprewrite.dtypes.fits.edges` of its elements.
        elements: Number of elements; a symbolic extent counts as one (a lower bound).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    kind: ValueKind = "result"
    alias: str = ""
    numbers: tuple[float, ...] = ()
    elements: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Count the elements, normalise symbolic extents, default the alias."""
        known = tuple([d for d in self.shape if isinstance(d, int)])
        object.__setattr__(self, "elements", prod(known))
        if len(known) < len(self.shape):
            spelled = (
                d if isinstance(d, int) else d.replace(" ", "") for d in self.shape
            )
            object.__setattr__(self, "shape", tuple(spelled))
        if not self.alias:
            object.__setattr__(self, "alias", self.name)

    @property
    def bytes(self) -> int:
        """Size in bytes at the traced dtype; 0 for a dtype without a size."""
        return self.elements * itemsize(self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether its dtype is one of real floating-point numbers."""
        return is_float(self.dtype)


@fast_init
@dataclass(frozen=True, slots=True)
class Op:
    """One operation of the program, and its facts.

    Attributes:
        name: Unique in the graph.
        canonical: The op's name in policies, the same for all frameworks.
        native: The framework's own name, such as ``aten.linear.default``.
        operands: Values read, in call order; a value may occur twice.
        results: Values made.
        path: Module path, such as ``encoder.layer.0.output.dense``.
        source: ``file:line`` of the user's code.
        region: Body that contains the op; empty at top level.
        fence: Why the op and its operands must not be touched; empty if they may.
        mutates: Indices of operands that the op writes in place.
        operand_rule: Treatment of operands of different float dtypes by its kernel, see
            :class:`amprewrite.ops.OpTraits`.
        literals: Python numbers among the arguments.
        dtype_argument: The dtype that a ``dtype=`` argument names; empty if the op
            has none or it is not given.
        chosen: How the model chose that dtype: ``pinned`` if it is the same when the
            model is traced in low precision, ``follows`` if it becomes low with the
            other dtypes (``y.to(x.dtype)``); empty if that is not known.
        has_dtype_argument: Whether a ``dtype=`` argument can set the op's computing
            dtype.
        contracted: Length of the contracted dimension of a contraction; None if
            unknown or not a contraction.
        masks: Indices of operands that are additive masks; their casts saturate.
        accumulates: Whether a contraction can return its full-precision accumulator.
        reads: Dtype in which each operand was read where the program was captured with
            its operands promoted; empty if each was read as it was stored.
        asked: ``full`` or ``low`` as a marker in the model asks; empty without one.
        calls: The calls of named functions and modules that the op is a part of, as
            ``softmax#3`` with a number for each call, outermost first; those of
            :mod:`amprewrite.ops.compounds` alone.
        trips: Number of executions in one run of the program: the trip count of the
            loop around the op, or the product of those of nested loops. A value enters
            a loop before the iterations, and leaves it at each.
        turns: For a carry that leaves the body of a loop, the values that it is in the
            next iteration: one in each body of the loop.
        decides: Whether its result decides if a loop goes on.
    """

    name: str
    canonical: str
    native: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    path: str = ""
    source: str = ""
    region: str = ""
    fence: str = ""
    mutates: tuple[int, ...] = ()
    operand_rule: OperandRule = "equal"
    literals: tuple[float, ...] = ()
    dtype_argument: str = ""
    chosen: Chosen = ""
    has_dtype_argument: bool = False
    contracted: int | None = None
    masks: tuple[int, ...] = ()
    accumulates: bool = False
    reads: tuple[str, ...] = ()
    asked: Literal["", "full", "low"] = ""
    calls: tuple[str, ...] = ()
    trips: int = 1
    turns: tuple[str, ...] = ()
    decides: bool = False

    @property
    def traits(self) -> OpTraits:
        """Traits of the op, from the table of ops."""
        return traits_of(self.canonical, self.native)

    @property
    def around(self) -> str:
        """The region in which its operands are cast: the outer one for ``enter``."""
        if self.canonical == "enter":
            return self.region.rpartition("/")[0]
        return self.region


@dataclass(frozen=True)
class ProgramGraph:
    """A whole program in SSA form: values by name, ops in program order, outputs.

    Attributes:
        values: Every value by its name, in order of definition.
        ops: Operations in an order in which they can run.
        outputs: Values handed back; a value may occur twice.
        states: Outputs that replace an input, such as running statistics or a cache:
            the position of the output and the name of that input.
        taped: Whether gradients are recorded as it runs, so that a caller may
            differentiate by a value that is returned (torch).
    """

    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    states: States = ()
    taped: bool = False

    @cached_property
    def op_by_name(self) -> Mapping[str, Op]:
        """All ops, by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Index of each op in program order, by name."""
        return {op.name: number for number, op in enumerate(self.ops)}

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The op that produces each value; inputs and constants have none."""
        return {result: op for op in self.ops for result in op.results}

    @cached_property
    def users(self) -> Mapping[str, tuple[tuple[Op, int], ...]]:
        """The uses of each value, as (op, operand index) in program order."""
        users: dict[str, list[tuple[Op, int]]] = {name: [] for name in self.values}
        for op in self.ops:
            for index, operand in enumerate(op.operands):
                users[operand].append((op, index))
        return {name: tuple(found) for name, found in users.items()}

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the values with storage that some op writes in place."""
        return frozenset(
            self.storage(op.operands[index]) for op in self.ops for index in op.mutates
        )

    @cached_property
    def network(self) -> "nx.DiGraph[str]":
        """The dataflow graph between ops, for ancestors, cuts and drawings."""
        import networkx as nx  # noqa: PLC0415  # slow to load

        network: nx.DiGraph[str] = nx.DiGraph()
        network.add_nodes_from(op.name for op in self.ops)
        for op in self.ops:
            for operand in op.operands:
                if operand in self.producer:
                    network.add_edge(
                        self.producer[operand].name, op.name, value=operand
                    )
        return network

    def inputs(self, *kinds: ValueKind) -> Iterator[Value]:
        """Yield the values that no op makes, of the given kinds (all if none)."""
        for value in self.values.values():
            if value.kind != "result" and (not kinds or value.kind in kinds):
                yield value

    def storage(self, name: str) -> str:
        """Return the name of the value that owns the storage of ``name``."""
        return self.values[name].alias

    def is_dtype(self, name: str, dtype: str) -> bool:
        """Return whether value ``name`` was traced with ``dtype``."""
        return self.values[name].dtype == dtype


# Factors of a contraction: the operands that are multiplied, not those added.

_FACTORS = {
    "conv": 2,
    "conv_transpose": 2,
    "linear": 2,
    "matmul": 2,
    "mv": 2,
    "ragged_dot": 2,
    "scaled_dot_product_attention": 3,
}
"""Number of factors of ops that have their factors first."""

_BEFORE_ADDEND = {name: _FACTORS[name] for name in ("conv", "conv_transpose", "linear")}
"""Ops that may have a bias after their factors, and the number of those."""

_AFTER_ADDEND = ("addbmm", "addmm", "addmv", "baddbmm")
"""Ops with one addend, and then two factors."""


def factor_indices(op: Op) -> tuple[int, ...]:
    """Return the indices of the operands that ``op`` multiplies and sums.

    Those of attention are queries, keys and values. Empty for an op that is no
    contraction, or one with products of products inside (``lstm``, ``einsum`` of
    three operands).
    """
    if op.canonical in _AFTER_ADDEND:
        return (1, 2)
    if op.canonical == "einsum":
        return (0, 1) if len(op.operands) == 2 else ()  # noqa: PLR2004  # a product
    count = _FACTORS.get(op.canonical, 0)
    return tuple(range(count)) if count <= len(op.operands) else ()


def addend_index(op: Op) -> int | None:
    """Return the index of the operand that ``op`` adds to its products; None if none.

    It is a bias, or the first operand of ``addmm`` and its kin.
    """
    if op.canonical in _AFTER_ADDEND:
        return 0
    factors = _BEFORE_ADDEND.get(op.canonical)
    return factors if factors is not None and factors < len(op.operands) else None


def linear_factors(op: Op) -> list[str]:
    """Return the operands in which ``op`` is linear, its addends being zero.

    They are the factors of a product or a convolution that are read once. Attention is
    not linear in its queries and keys.
    """
    if op.traits.group not in ("contraction", "convolution") or len(op.results) != 1:
        return []
    factors = [op.operands[index] for index in factor_indices(op)]
    return [name for name in factors if op.operands.count(name) == 1]


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
