"""Contractions that a kernel for 8 bits computes, by the ``kernel`` of a policy."""

from collections.abc import Iterator

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.model import Plan
from amprewrite.policy.contract import Contract

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
