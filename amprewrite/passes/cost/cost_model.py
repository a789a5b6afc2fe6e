"""What moving, casting and computing cost on a machine: plain data, in bytes.

The unit is one byte read from or written to memory. A launch and a multiplication are
counted as the bytes that could have been moved in the same time, so that one number
holds all that placement decides about. What ``amprewrite calibrate`` measured takes
the place of the figures here; see :mod:`amprewrite.passes.cost.measured_costs`.
"""

from dataclasses import dataclass, field
from typing import Literal

from amprewrite.errors import UnsupportedError
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.passes.cost.flops import multiplications, work_of
from amprewrite.passes.cost.timings import Timings
from amprewrite.plan import DEFAULT_PRICES
from amprewrite.plan.hardware.kernels import Kernels
from amprewrite.policy import OpClass

GENERATED = frozenset(
    (OpClass.PROMOTE, OpClass.FOLLOW, OpClass.DENY, OpClass.ACCUMULATE)
)
"""Classes whose kernels a fusing compiler writes itself, and casts into them.

Source: inductor and XLA call libraries for contractions and for what they do not know;
pointwise ops, reductions and data movement they generate.
"""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices of one target.

    Attributes:
        target: Name of the target, ``eager`` or ``compiled``.
        launch: Bytes that could be moved while one cast is started.
        mac_bytes: Bytes that could be moved during one full-precision multiply-add.
        speedup: How many times faster a low contraction multiplies than a full one.
        fused: Classes of ops that do the casts beside them in their own kernels, and
            hand each other values without memory.
        timings: Times of contractions by their shape, in place of ``mac_bytes`` and
            ``speedup``, and of other ops; None if they were not measured.
        source: Where the prices come from, in words.
        kernels: What low contractions hand over.
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
"""Every op and cast is a kernel of its own.

``launch``: 2 us, a small ``Tensor.to`` in eager torch, at 16 GB/s, what one core
streams; a GPU moves a hundred times more in that time. ``mac_bytes``: two operations
at 0.1 byte each, the balance of an A100 (2.0 TB/s for 19.5 Tflop/s of float32, from
its data sheet); an H200 has 0.07. ``speedup``: 16 on both for bfloat16 by their data
sheets, half of it to be had in practice.
"""

COMPILED = CostModel("compiled", 0, mac_bytes=0.2, speedup=8.0, fused=GENERATED)
"""A fusing compiler: only bytes that reach memory count, and casts for libraries.

What does so is said by :mod:`amprewrite.passes.cost.fusion`.
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
    """Return what a contraction loses by running in full, in bytes.

    It is negative where a low one is slower. What an element is smaller in low
    precision is not part of it.
    """
    if model.timings is not None:
        return round(model.timings.lost(work_of(graph, op)))
    share = 1.0 - 1.0 / model.speedup
    return round(multiplications(graph, op) * model.mac_bytes * share)


def low_overhead(graph: ProgramGraph, op: Op, model: CostModel) -> int:
    """Return what an op that is no contraction costs more in low, beside its bytes."""
    if model.timings is None or is_view(graph, op):
        return 0
    read = sum(read_elements(graph, op, index) for index in graph.float_operands(op))
    made = sum(graph.values[name].elements for name in op.results)
    return round((read + made) * model.timings.dearer(op.canonical))


def kernel_overhead(graph: ProgramGraph, op: Op, model: CostModel) -> int:
    """Return what an op in a generated kernel costs more in low, beside its bytes.

    What it hands to memory is cast on its way, so that it need not be low itself for a
    low reader, and saves nothing by it for a full one.
    """
    if model.timings is None or is_view(graph, op):
        return 0
    made = sum(graph.values[name].elements for name in op.results)
    return made * model.timings.saved


def is_view(graph: ProgramGraph, op: Op) -> bool:
    """Return whether ``op`` moves nothing: its results share storage with operands.

    So it is with what passes into a body or out of it: the ops there read and write it.
    """
    if op.canonical in REGION_BOUNDARIES:
        return True
    if op.mutates or not op.results:
        return False
    owners = {graph.storage(name) for name in op.results}
    fresh = not owners.isdisjoint(op.results)
    return not fresh and owners.issubset(map(graph.storage, op.operands))


def read_elements(graph: ProgramGraph, op: Op, index: int) -> int:
    """Return how many elements of operand ``index`` an op reads: of a table, rows."""
    elements = graph.values[op.operands[index]].elements
    if index or op.traits.group != Group.LOOKUP:
        return elements
    return min(elements, sum(graph.values[name].elements for name in op.results))
