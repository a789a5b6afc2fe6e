"""Prices of moving, casting and computing on a machine, in bytes.

The unit is one byte read from or written to memory. Launches and multiplications are
counted as the bytes that could be moved in the same time, so that one number is
minimised. Measurements of ``amprewrite calibrate`` replace these figures; see
:mod:`amprewrite.passes.cost.measured_costs`.
"""

from dataclasses import dataclass, field
from typing import Literal

from amprewrite.errors import UnsupportedError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.cost.flops import multiplications, work_of
from amprewrite.passes.cost.moved_bytes import is_view, read_elements
from amprewrite.passes.cost.timings import Timings
from amprewrite.plan import DEFAULT_PRICES
from amprewrite.plan.hardware.kernels import Kernels
from amprewrite.policy import OpClass

GENERATED = frozenset(
    (OpClass.PROMOTE, OpClass.FOLLOW, OpClass.DENY, OpClass.ACCUMULATE)
)
"""Classes with kernels that a fusing compiler generates, including casts.

Source: inductor and XLA call libraries for contractions and for unknown ops; they
generate pointwise ops, reductions and data movement.
"""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices of one target: eager or compiled execution on a device.

    Attributes:
        target: Name of the target, ``eager`` or ``compiled``.
        launch: Bytes that could be moved while one cast is started.
        mac_bytes: Bytes that could be moved during one full-precision multiply-add.
        speedup: Speed of a low contraction relative to a full one.
        fused: Classes of ops with casts fused into their kernels; they pass values to
            each other without memory.
        timings: Times of contractions by their shape, in place of ``mac_bytes`` and
            ``speedup``, and of other ops; None if they were not measured.
        source: Origin of the prices, as text.
        kernels: Accumulator dtypes of low contractions.
    """

    target: Literal["eager", "compiled"]
    launch: int
    mac_bytes: float
    speedup: float
    fused: frozenset[OpClass] = frozenset()
    timings: Timings | None = None
    source: str = DEFAULT_PRICES
    kernels: Kernels = field(default_factory=Kernels)


EAGER = CostModel("eager", launch=32768, mac_bytes=0.2, speedup=8.0)
"""Prices of eager execution: every op and cast is a kernel of its own.

``launch``: 2 us, a small ``Tensor.to`` in eager torch, at 16 GB/s, the bandwidth of one
core; a GPU moves a hundred times more in that time. ``mac_bytes``: two operations at
0.1 byte each, the balance of an A100 (2.0 TB/s for 19.5 Tflop/s of float32, from its
data sheet); an H200 has 0.07. ``speedup``: 16 on both for bfloat16 by their data
sheets, half of it in practice.
"""

COMPILED = CostModel("compiled", 0, mac_bytes=0.2, speedup=8.0, fused=GENERATED)
"""Prices under a fusing compiler: bytes that reach memory, and casts for libraries.

See :mod:`amprewrite.passes.cost.fusion`.
"""

MODELS = {model.target: model for model in (EAGER, COMPILED)}
"""Cost models by the name of their target."""


def cost_model(target: str) -> CostModel:
    """Return the cost model of ``target``.

    Raises:
        UnsupportedError: There is none.
    """
    if target not in MODELS:
        msg = f"unknown target {target!r}; want {' or '.join(MODELS)}"
        raise UnsupportedError(msg)
    return MODELS[target]


def lost_speed(graph: ProgramGraph, op: Op, model: CostModel) -> int:
    """Return the cost of running a contraction in full instead of low, in bytes.

    It is negative if a low one is slower. The smaller size of low elements is not part
    of it.
    """
    if model.timings is not None:
        return round(model.timings.lost(work_of(graph, op)))
    share = 1.0 - 1.0 / model.speedup
    return round(multiplications(graph, op) * model.mac_bytes * share)


def low_overhead(graph: ProgramGraph, op: Op, model: CostModel) -> int:
    """Return the extra cost of a low op that is no contraction, beside its bytes."""
    if model.timings is None or is_view(graph, op):
        return 0
    read = sum(
        read_elements(graph, op, index)
        for index, name in enumerate(op.operands)
        if graph.values[name].is_float
    )
    made = sum(graph.values[name].elements for name in op.results)
    return round((read + made) * model.timings.dearer(op.canonical))


def kernel_overhead(graph: ProgramGraph, op: Op, model: CostModel) -> int:
    """Return the extra cost of an op in a generated kernel in low, beside its bytes.

    Results are cast on the way to memory, so that the op need not be low itself for a
    low reader, and being low saves nothing for a full one.
    """
    if model.timings is None or is_view(graph, op):
        return 0
    made = sum(graph.values[name].elements for name in op.results)
    return made * model.timings.saved
