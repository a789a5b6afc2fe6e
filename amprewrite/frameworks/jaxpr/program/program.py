"""Programs: jaxprs with inlined calls and named values, for readers and writers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from jax.dtypes import float0

from amprewrite.frameworks.jaxpr.compat.equations import Eqn
from amprewrite.ir.graph import Chosen
from amprewrite.ops import op_table
from amprewrite.runtime.fast_init import fast_init

# The primitives of JAX: canonical names, dtype names, and fences.
#
# The table of ops has the primitives that are an op under a different name. All need
# operands of equal dtypes; ``dot_general`` accepts different ones too, and then
# silently computes in float32.

CONTRACTIONS = frozenset(("dot_general", "conv_general_dilated"))
"""Contractions that can return their full-precision accumulators."""

SCALE = "amprewrite_scale"
"""The primitive of unit scaling, with parameters ``forward`` and ``backward``."""

TYPED_BODIES = {
    "scatter": "scatter",
    "scatter-add": "scatter_add",
}
"""Primitives with a body typed for one dtype, and a function for other dtypes.

The function of ``jax.lax`` makes a new body for another dtype.
"""

SUMMED_BACKWARDS = frozenset(("broadcast_in_dim", "gather", "pcast", "pvary"))
"""Moves of data with a sum as derivative, which runs in full precision."""

_CALLBACK = "calls back into Python, which expects the dtypes it was traced with"
_KERNEL = "a kernel written for the dtypes it was traced with"
_SOLVER = "a solver: factorisations have no low kernels"
_SYSTEM = "a linear solver: its tolerance is for the dtype it was traced with"
_RULE = "a rule of the user, written for the dtypes it was traced with"
_STATE = "reads or writes a mutable array, which has one dtype"

FENCES = {
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback"), _CALLBACK),
    **dict.fromkeys(
        ("debug_print", "ffi_call", "custom_call", "tpu_custom_call"), _CALLBACK
    ),
    **dict.fromkeys(("pallas_call", "mosaic_gpu", "triton_kernel_call"), _KERNEL),
    **dict.fromkeys(("custom_linear_solve", "custom_root"), _SOLVER),
    "linear_solve": _SYSTEM,  # of lineax, and all solvers made with it
    **dict.fromkeys(("custom_partitioning", "custom_vmap_call"), _RULE),
    **dict.fromkeys(("linear_call", "call_hi_primitive"), _RULE),
    "low_contraction": "a contraction that was converted before",
    "low_tangent": "the tangent of a contraction that was converted before",
    **dict.fromkeys(
        ("run_state", "get", "swap", "addupdate", "ref_new", "new_ref"), _STATE
    ),
    **dict.fromkeys(("freeze", "mutable_array", "empty_ref", "free_ref"), _STATE),
    **dict.fromkeys(("reduce", "reduce_window"), "reduces by a function of the user"),
    "reduce_precision": "rounds to a format that the model chose",
}
"""Primitives that are never changed, with the reason."""

DTYPE_PARAMETERS = ("preferred_element_type", "out_dtype")
"""Names of the parameters that set the dtype of the result."""


def canonical_name(primitive: str) -> str:
    """Return the canonical name of a primitive."""
    found = op_table().jax.get(primitive)
    return primitive.replace("-", "_") if found is None else found


def dtype_name(aval: Any) -> str:
    """Return the dtype name of ``aval``; for one without a dtype, its type's name."""
    dtype = getattr(aval, "dtype", None)
    return type(aval).__name__ if dtype is None else _name(dtype)


@cache
def _name(dtype: Any) -> str:
    """Return the cached name of a dtype, since NumPy recomputes it each time."""
    if dtype == float0:
        return "float0"  # numpy calls it void
    return getattr(dtype, "name", str(dtype))


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A scalar literal of the program.

    Attributes:
        value: Its value, of the dtype it was traced with.
        dtype: Name of that dtype.
        weak: Whether its type is weak, as of a Python number.
    """

    value: Any
    dtype: str
    weak: bool = False


Atom = str | Number
"""Operand of an equation: the name of a value, or a number."""

BoundaryKind = Literal["enter", "leave", "carry", "boundary"]
"""Kind of passage into or out of a body, see :mod:`amprewrite.ir.graph`."""


@fast_init
@dataclass(frozen=True, slots=True)
class RegionBoundary:
    """A value that passes into or out of a body.

    Attributes:
        op: Name of its op in the program graph.
        kind: Kind of the passage.
        reads: Its sources; a branch has one in each body.
        makes: Name of the value on the other side.
        wants: Dtype in which each name in ``reads`` is read, in a program traced with
            promotion; empty if all are read as they are.
    """

    op: str
    kind: BoundaryKind
    reads: tuple[Atom, ...]
    makes: str
    wants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """One body of a step: of a loop, a branch, a checkpoint or a custom rule.

    Attributes:
        inputs: Its parameters: names inside, or numbers.
        enters: Boundary of each input; None if it is the outer value itself.
        steps: Its steps.
        outputs: Its outputs.
        region: Its name as a region.
    """

    inputs: tuple[Atom, ...]
    enters: tuple[RegionBoundary | None, ...]
    steps: tuple["Step", ...]
    outputs: tuple[Atom, ...]
    region: str


@fast_init
@dataclass(frozen=True, slots=True)
class Step:
    """One equation of the program, with its place and bodies.

    Attributes:
        name: Unique in the program; the op's name in the plan.
        eqn: The equation.
        operands: Its operands.
        results: Names of its results.
        stack: Scopes of the equation inside its body, and those of calls around it.
        scopes: Names of all scopes around it, outermost first.
        region: Body that contains it; empty at top level.
        fence: Reason why it must not be changed; empty if it may.
        bodies: Its bodies, if its primitive is known.
        leaves: Boundary of each result of the bodies; None if it is the inner value.
        chosen: For a user cast of full to full restored from a low trace, the way in
            which the model chose its dtype; see :class:`amprewrite.ir.Op`.
        wants: Dtype in which each name in ``operands`` is read, in a program traced
            with promotion; empty if all are read as they are.
        conjugates: Whether it squares complex numbers for a norm.
        calls: Calls of named functions around it, see :class:`amprewrite.ir.Op`.
        called_at: ``file:line`` of the user's call of the jitted function that it is
            in; empty outside of one.
    """

    name: str
    eqn: Eqn
    operands: tuple[Atom, ...]
    results: tuple[str, ...]
    stack: Any
    scopes: tuple[str, ...] = ()
    region: str = ""
    fence: str = ""
    bodies: tuple[Body, ...] = ()
    leaves: tuple[RegionBoundary | None, ...] = ()
    chosen: Chosen = ""
    wants: tuple[str, ...] = ()
    conjugates: bool = False
    calls: tuple[str, ...] = ()
    called_at: str = ""

    @property
    def primitive(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name


@dataclass(frozen=True)
class Program:
    """A whole program: inputs, constants, steps and outputs.

    Attributes:
        inputs: Names of the inputs.
        constants: Arrays that the function closed over, by name.
        steps: Its steps at top level.
        outputs: Its outputs.
        avals: Type of every value by name.
        states: Positions of outputs, each with the name of the input that it replaces.
    """

    inputs: tuple[str, ...]
    constants: Mapping[str, Any]
    steps: tuple[Step, ...]
    outputs: tuple[Atom, ...]
    avals: dict[str, Any] = field(default_factory=dict[str, Any])
    states: tuple[tuple[int, str], ...] = ()


def names_of(atoms: Iterable[Atom]) -> tuple[str, ...]:
    """Return the names among atoms, in order, without the numbers."""
    return tuple([atom for atom in atoms if isinstance(atom, str)])


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield every step at every depth, outer ones first."""
    for step in steps:
        yield step
        for body in step.bodies:
            yield from all_steps(body.steps)


def reads_of(step: Step) -> Iterator[str]:
    """Yield the names that a step and the steps in it read, one for each use."""
    for inner in all_steps((step,)):
        yield from names_of(inner.operands)
        for body in inner.bodies:
            yield from names_of(body.outputs)
            yield from sources_of(body.enters)
        yield from sources_of(inner.leaves)


def sources_of(boundaries: Iterable[RegionBoundary | None]) -> Iterator[str]:
    """Yield the names that pass by boundaries, in order."""
    for boundary in boundaries:
        yield from names_of(boundary.reads) if boundary else ()
