"""Facts of a plan that others ask for: kernels of 8 bits, ranges, gradients' errors."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.model import GradientError, Plan
from amprewrite.policy.model import Contract

# Contractions that a kernel for 8 bits computes, by the ``kernel`` of a policy.

_NATIVE = (
    "aten.linear.default",
    "aten.matmul.default",
    "aten.mm.default",
)
"""Products of a tensor and a matrix, as torch spells them."""

_BACKWARD = ("float8_e4m3fn", "float8_e5m2")
"""Formats of gradients that the kernel multiplies with e4m3; not e5m2 with e5m2.

Source: the checks of ``_scaled_mm`` for CUDA, torch 2.13.
"""

_MATRIX = 2


def has_kernel(graph: ProgramGraph, op: Op, formats: Contract, full: str) -> bool:
    """Return whether torch's kernel for 8 bits can compute ``op``.

    It multiplies a tensor and a matrix, with operands in e4m3 and gradients in e4m3 or
    e5m2, and sums in float32.

    Args:
        graph: The program.
        op: A contraction that rounds to 8 bits.
        formats: Its formats.
        full: The full dtype of the policy.
    """
    taken = formats.forward == "float8_e4m3fn" and formats.backward in _BACKWARD
    if not taken or full != "float32" or op.native not in _NATIVE:
        return False
    first, second, *_ = (graph.values[name].shape for name in op.operands)
    return bool(first) and len(second) == _MATRIX


def without_kernel(plan: Plan, contract: Contract) -> Iterator[str]:
    """Yield a warning if a policy asks for a kernel that some contractions lack."""
    if contract.kernel != "scaled_mm":
        return
    lacking = [d.op for d in plan.quantised if not d.kernel]
    if lacking:
        named = ", ".join(lacking[:3]) + (", ..." if lacking[3:] else "")
        yield (
            f"kernel scaled_mm: {len(lacking)} of {len(plan.quantised)} contractions "
            f"are emulated: {named}; the kernel is torch's, and takes linear, mm and "
            "matmul with a matrix, operands in float8_e4m3fn, gradients in "
            "float8_e4m3fn or float8_e5m2"
        )


# Errors of parameters' gradients by the contractions that round to 8 bits.

NOISE = 2.0**-12
"""Relative size below which a gradient is zero but for rounding.

It is relative to the root mean square of all gradients. The key bias of an attention
has such a gradient: its error says nothing.
"""


@dataclass(frozen=True)
class Gradients:
    """Measured changes of the gradients of a loss, by contraction.

    The loss is the mean square distance of the float outputs to fixed random targets,
    of which ``verify`` compares the gradients.

    Attributes:
        sizes: L2 norm of the gradient of each parameter, in full precision.
        counts: Number of elements of each parameter.
        eight: By contraction: the L2 norm of the change of each parameter's gradient
            if it alone rounds to 8 bits, forward and backward.
        low: The same for all roundings to the low dtype of one plan together.
        low_outputs: Predicted squared error of the outputs by those roundings.
        unit: Factor by which errors of gradients are compared with those of outputs.
    """

    sizes: Mapping[str, float]
    counts: Mapping[str, int]
    eight: Mapping[str, Mapping[str, float]]
    low: Mapping[str, float]
    low_outputs: float = 0.0
    unit: float = 1.0
    _squares: dict[str, float] = field(default_factory=dict[str, float])

    @cached_property
    def norm(self) -> float:
        """The L2 norm of all gradients together."""
        return sqrt(sum(size * size for size in self.sizes.values()))

    @cached_property
    def low_share(self) -> float:
        """Squared error of the gradients by 16 bits over that of the outputs."""
        low = sum(change * change for change in self.low.values())
        return low / self.norm**2 / self.low_outputs if self.low_outputs else 0.0

    def square(self, op: str) -> float:
        """Return the squared relative error of all gradients by 8 bits in one op."""
        if op not in self._squares:
            found = self.eight.get(op, {}).values()
            self._squares[op] = sum(e * e for e in found) / self.norm**2
        return self._squares[op]

    def error(self, ops: Iterable[str], low_outputs: float) -> GradientError:
        """Return the predicted error of the gradients under a plan.

        Errors of different contractions are independent. Those of 16 bits are taken in
        proportion to the error of the outputs that they cause.

        Args:
            ops: The contractions that round to 8 bits.
            low_outputs: Predicted squared error of the outputs by 16-bit roundings.
        """
        share = low_outputs / self.low_outputs if self.low_outputs else 0.0
        squares = {name: share * self.low[name] ** 2 for name in self.sizes}
        for op in ops:
            for name, change in self.eight.get(op, {}).items():
                squares[name] += change * change
        return self.relative({name: sqrt(square) for name, square in squares.items()})

    def relative(self, changes: Mapping[str, float]) -> GradientError:
        """Return changes of the gradients as relative errors.

        Args:
            changes: The L2 norm of the change of each parameter's gradient.
        """
        typical = self.norm / sqrt(sum(self.counts.values()))
        floors = {n: NOISE * typical * sqrt(k) for n, k in self.counts.items()}
        each = {
            name: change / self.sizes[name]
            for name, change in changes.items()
            if self.sizes[name] > floors[name]
        }
        worst = max(each, key=lambda name: each[name])
        total = sqrt(sum(change * change for change in changes.values())) / self.norm
        return GradientError(total, each[worst], worst)


# Facts of a plan about the range of gradients, for advice on loss scales.

SCALE = "scale"
"""Canonical name of the factors of unit scaling."""


def is_unit_scaled(plan: Plan) -> bool:
    """Return whether the program has factors of unit scaling."""
    return any(decision.canonical == SCALE for decision in plan.decisions)


def gradient_format(plan: Plan) -> str:
    """Return the narrowest format in which gradients are held without a scale.

    That is the 8-bit format of gradients where a contraction rounds to one and no
    scale comes from the tensor itself; else the low dtype, which may be empty.
    """
    for decision in plan.decisions:
        if decision.backward and decision.scaling == "none":
            return decision.backward
    return plan.low
