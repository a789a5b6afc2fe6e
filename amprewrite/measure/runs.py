"""Results of runs of a model and of its converted form, as a framework shows them.

Whole runs (:class:`Run` to :class:`Measured`), single ops (:class:`OpSample`), tensors
(:class:`Observed`), and a converted program of which ops can be restored
(:class:`Ablation`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from amprewrite.ir import ProgramGraph
from amprewrite.plan import Decision, Plan
from amprewrite.plan.sensitivity import Sensitivity

SEED = 1472
"""Seed of the numbers: the same for the same outputs, in both frameworks."""


def output_gradients(shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Return a gradient for each float output of a model.

    Where some are scalars they are losses: they get 1, and other outputs 0, so that the
    gradients are those of a step of training. Otherwise they are unit Gaussian numbers.

    Args:
        shapes: The shape of each output.

    Returns:
        A float64 array of each shape.
    """
    if not all(shapes):
        return [np.full(shape, 0.0 if shape else 1.0) for shape in shapes]
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(shape) for shape in shapes]


Block = NDArray[np.float64]
"""Elements that follow each other in row-major order: f64[n]."""

SIZE = 2**16
"""Elements of a block, of 512 KiB: several of them fit into a cache.

With blocks of a quarter the calls take more time than the elements.
"""


@dataclass(frozen=True)
class Values:
    """Float values of one tensor; complex ones have a last dimension of two.

    Attributes:
        shape: The extents.
        block: Function from a start and a stop to the elements between them in
            row-major order, in float64; they may not be written.
    """

    shape: tuple[int, ...]
    block: Callable[[int, int], Block]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


Held = Values | NDArray[Any]
"""Values of one tensor, or an array of them."""


def values_of(held: Held) -> Values:
    """Return an array, of any float dtype, as :class:`Values`; others as they are."""
    if not isinstance(held, np.ndarray):
        return held
    flat = np.ascontiguousarray(held).reshape(-1)

    def block(start: int, stop: int) -> Block:
        return flat[start:stop].astype(np.float64, copy=False)

    return Values(held.shape, block)


def bounded(held: Held, by: Held, limit: float) -> Values:
    """Return values with zeros where others exceed a limit.

    Args:
        held: The values.
        by: The others, of the same shape; NaN exceeds every limit.
        limit: Largest magnitude that does not exceed it.
    """
    values, others = values_of(held), values_of(by)

    def block(start: int, stop: int) -> Block:
        own = values.block(start, stop)
        kept = np.abs(others.block(start, stop)) <= limit
        return own if kept.all() else np.where(kept, own, 0.0)

    return Values(values.shape, block)


def blocks(*held: Held) -> Iterator[tuple[Block, ...]]:
    """Yield the blocks of several tensors of one size, side by side."""
    found = [values_of(one) for one in held]
    size = found[0].size
    for start in range(0, size, SIZE):
        stop = min(start + SIZE, size)
        yield tuple(one.block(start, stop) for one in found)


def is_equal(found: Held, wanted: Held) -> bool:
    """Return whether two tensors have the same values; NaN equals NaN."""
    if found.shape != wanted.shape:
        return False
    return all(np.array_equal(a, b, equal_nan=True) for a, b in blocks(found, wanted))


def are_equal(found: Sequence[Held], wanted: Sequence[Held]) -> bool:
    """Return whether two lists of tensors are equal, each to each."""
    alike = len(found) == len(wanted)
    return alike and all(map(is_equal, found, wanted))


Array = NDArray[np.float64]
"""Values of one tensor; complex ones have a last dimension of two."""


@dataclass(frozen=True)
class Call:
    """Arguments of a call, the reference dtype, and whether gradients are compared.

    Attributes:
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        reference: Name of the dtype in which the original is run as the reference.
        gradients: Whether the gradients of parameters and inputs are compared too.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    reference: str = "float64"
    gradients: bool = False


@dataclass(frozen=True)
class Run:
    """Results of one run of a model.

    Attributes:
        outputs: The float outputs, by their path in the output's structure.
        dtypes: Dtype of every output.
        others: The outputs that are no floats.
        gradients: Gradient of a loss over the float outputs, by parameter or input.
        inputs: Names of those gradients that are an input's.
    """

    outputs: Mapping[str, Array]
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    gradients: Mapping[str, Array] = field(default_factory=dict[str, Array])
    inputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Stepped:
    """Result of one run of both forms, op by op.

    Attributes:
        notes: Comparisons that failed, with the reasons.
        run: Outputs of the original's program; None if they were not kept.
        noted: Notes on these, where they are the reference.
    """

    notes: Sequence[str] = ()
    run: Run | None = None
    noted: Sequence[str] = ()


@dataclass(frozen=True)
class Walked:
    """Result of a walk over the ops.

    Attributes:
        reference: Dtype of the reference; empty if no walk was possible.
        graph: The program; None if no walk was possible.
        notes: Comparisons that failed, with the reasons.
        sensitivity: Sensitivity of the outputs to the roundings of the plan, the error
            of each output relative to its own norm; None if it could not be measured.
        run: Outputs of the original's program in the reference's dtype; None if they
            are not known.
        noted: Notes on these, where they are the reference.
    """

    reference: str = ""
    graph: ProgramGraph | None = None
    notes: tuple[str, ...] = ()
    sensitivity: Sensitivity | None = None
    run: Run | None = None
    noted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Results of all runs: the reference, the converted model and the baselines.

    Attributes:
        reference: Dtype in which the reference was run, possibly another one than
            requested.
        runs: By name, see :mod:`amprewrite.measure.runs`: the reference, the
            converted model, that model compiled as a whole if the framework does so,
            and the baselines.
        failures: Baselines that could not be run, with the message.
        plan: The plan of the converted model; None if it has none.
        low: Dtype of the low baselines; empty if there are none.
        notes: Notes for the user.
        walked: Result of the walk over the ops; None if there was none.
    """

    reference: str
    runs: Mapping[str, Run]
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    plan: Plan | None = None
    low: str = ""
    notes: tuple[str, ...] = ()
    walked: Walked | None = None


@dataclass(frozen=True)
class OpSample:
    """The float results of one op, run in three ways.

    They are valid while the sample is observed: the program may write to them later.

    Attributes:
        op: Its name in the plan.
        reference: In the reference's dtype, on the reference's operands.
        actual: In the converted program.
        alone: Results of the converted op alone, on the reference's operands rounded to
            the dtypes that it reads; those of the reference for an op that moves values
            in memory that stays where it is, in both forms alike.
        exact: Whether ``alone`` has no rounding of its own, so that it equals ``same``.
        same: Results of the original's op on the same rounded operands, in the
            reference's dtype, or in one that is as good as exact for them; None if it
            does not run on them.
        again: Function that runs it again with every float operand moved up or down at
            random by a relative amount, and with other random numbers, by the number of
            a draw; None if it does not run again. It is valid while the sample is
            observed.
        contracts: Whether the op multiplies and sums.
        length: Number of elements that it reads for each that it makes.
        format: The 8-bit format to which the op rounds its operands itself; empty if
            it does not.
        decision: Decision of an inserted node; None for an op of the plan.
        whole: Source and value of an inserted node before values beyond the range of
            its format were left out; empty for an op of the plan.
        readers: Names of the ops that read an inserted node; empty for an op of the
            plan.
        checked: Results of the original's op on the operands that the converted op had
            in the program, for ``actual`` to be compared with; then ``again`` runs it
            on these, and ``alone`` is ``same``, rounded. Empty where ``alone`` is
            compared with ``same``.
    """

    op: str
    reference: tuple[Held, ...]
    actual: tuple[Held, ...]
    alone: tuple[Held, ...]
    exact: bool
    same: tuple[Held, ...] | None = None
    again: Callable[[float, int], tuple[Held, ...] | None] | None = None
    contracts: bool = False
    length: float = 1.0
    format: str = ""
    decision: Decision | None = None
    whole: tuple[Held, ...] = ()
    readers: tuple[str, ...] = ()
    checked: tuple[Held, ...] = ()

    @property
    def kernel(self) -> tuple[tuple[Held, ...], tuple[Held, ...] | None]:
        """Results of the converted op, and the original's on the same operands."""
        if self.checked:
            return self.actual, self.checked
        return self.alone, self.same


Observe = Callable[[OpSample], None]
"""Consumer of samples, called once for each in program order; none is kept."""


class Observed(NamedTuple):
    """One float tensor of a run.

    Attributes:
        name: Name of a parameter; or of the function that made the tensor, numbered.
        path: Path of the module in torch, source line in JAX; empty if unknown.
        parameter: Whether it is a parameter of the model.
        gradient: Whether the values are those of its gradient.
        values: Function that returns the values, in float64, on the host; it is valid
            while the tensor is observed.
    """

    name: str
    path: str
    parameter: bool
    gradient: bool
    values: Callable[[], NDArray[Any]]


Look = Callable[[Observed], None]
"""Consumer of tensors: parameters first, then others in the order of the run."""


def numbered(name: str, counts: dict[str, int]) -> str:
    """Return a name, with the number of its use from the second on."""
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name


class Ablation(Protocol):
    """A converted program of which ops can be restored, on the arguments of a call.

    Inserted nodes, by the names of their samples, can be restored too: then they hand
    on their source, rounded to their dtype. A restored op that makes, views or writes a
    storage that is written in place keeps it full as a whole, as a plan does.

    Attributes:
        plan: The plan of the converted program.
        graph: The original's program.
        restorable: Names of the ops of the plan that can be restored one by one.
        seconds: Additional time of each op that a run has restored, on the operands of
            that run, if it could be taken; negative if the restored op is faster.
    """

    plan: Plan
    graph: ProgramGraph
    restorable: frozenset[str]
    seconds: dict[str, float]

    def run(self, restored: Collection[str], /) -> Run:
        """Run the converted program with some ops restored.

        Args:
            restored: Names of ops of the plan and of inserted nodes.
        """
        ...
