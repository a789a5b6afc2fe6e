"""Prices of moving, casting and computing on a machine, in bytes.

The unit is one byte read from or written to memory. Launches and multiplications are
counted as the bytes that could be moved in the same time, so that one number is
minimised. Measurements of ``amprewrite calibrate`` replace these figures; see
:mod:`amprewrite.passes.cost.cost_model`.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from math import exp, isqrt, log, prod
from statistics import fmean, median
from typing import Literal

from amprewrite.dtypes import itemsize
from amprewrite.errors import UnsupportedError, warn
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph, Value
from amprewrite.ops import Group
from amprewrite.plan import DEFAULT_PRICES
from amprewrite.plan.hardware import (
    FULL,
    Calibration,
    Device,
    Kernels,
    Kind,
    prices_are_fixed,
    shipped_calibration,
)
from amprewrite.policy import OpClass


def cast_bytes(elements: int, from_size: int, to_size: int, trips: int) -> int:
    """Return the bytes that a cast moves: each element is read and written once.

    Args:
        elements: Elements of the value.
        from_size: Bytes of an element before; 0 if they are counted elsewhere.
        to_size: Bytes of an element after.
        trips: Iterations of the loops around it, multiplied.
    """
    return trips * elements * (from_size + to_size)


def is_view(graph: ProgramGraph, op: Op) -> bool:
    """Return whether ``op`` moves nothing: its results share storage with operands.

    Ops at region boundaries count too: the ops inside read and write the value.
    """
    if op.canonical in REGION_BOUNDARIES:
        return True
    if op.mutates or not op.results:
        return False
    values, first = graph.values, op.results[0]
    if values[first].alias == first:  # as most results do
        return False
    owners = {values[name].alias for name in op.results}
    if not owners.isdisjoint(op.results):
        return False
    return owners.issubset([values[name].alias for name in op.operands])


def read_elements(graph: ProgramGraph, op: Op, index: int) -> int:
    """Return the number of elements that an op reads of operand ``index``."""
    elements = graph.values[op.operands[index]].elements
    if index or op.traits.group != Group.LOOKUP:
        return elements
    return min(elements, sum(graph.values[name].elements for name in op.results))


# Multiply-adds and shapes of contractions.

ROWS_UNKNOWN = 64
"""Rows assumed for a product with a symbolic extent: neither thin nor large.

The number of multiply-adds still counts that extent as one.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A contraction as a batch of equal matrix products.

    Attributes:
        kind: Kind of kernel.
        macs: Multiply-adds of all products.
        batches: Number of products.
        thin: Smallest of the three extents of one product.
        elements: Number of elements read and written.
    """

    kind: Kind
    macs: int
    batches: int
    thin: int
    elements: int


def multiplications(graph: ProgramGraph, op: Op) -> int:
    """Return the multiply-adds of a contraction; a symbolic extent counts as one.

    If the contracted length is not known, attention counts as two products over the
    length of the keys, and any other op as one matrix product: the root of the product
    of the sizes of its operands and its result.
    """
    values = graph.values
    made = sum(values[name].elements for name in op.results[:1])
    if op.contracted is not None:
        return made * op.contracted
    floats = [values[name] for name in op.operands if values[name].is_float]
    if (
        op.traits.group == Group.ATTENTION
        and len(floats) > 1
        and len(floats[1].shape) > 1
    ):
        length = floats[1].shape[-2]
        return 2 * floats[0].elements * (length if isinstance(length, int) else 1)
    sizes = [value.elements for value in floats[:2]]
    return isqrt(made * sizes[0] * sizes[1]) if len(sizes) > 1 else made


def work_of(graph: ProgramGraph, op: Op) -> Work:
    """Return the products that a contraction consists of.

    The extents of a product follow from the sizes of its operands and its result and
    the contracted length. Where that is not known, they are guessed as equal.
    """
    macs = max(multiplications(graph, op), 1)
    read = map(graph.values.__getitem__, op.operands)
    values = [value for value in read if value.is_float]
    made = graph.values[op.results[0]] if op.results else None
    elements = sum(value.elements for value in (*values, *([made] if made else ())))
    factors = values[1:3] if op.traits.addend_first else values[:2]
    if op.traits.group == Group.ATTENTION and values and len(values[0].shape) > 1:
        shape = values[0].shape
        heads = prod(extent for extent in shape[:-2] if isinstance(extent, int))
        thin = min(_known(shape[-2]), _known(shape[-1]))
        return Work("attention", macs, max(heads, 1), thin, elements)
    convolves = op.traits.group == Group.CONVOLUTION
    kind: Kind = "convolution" if convolves else "product"
    length = op.contracted
    if not length or made is None or len(factors) != 2:  # noqa: PLR2004  # a pair
        return Work(kind, macs, 1, max(round(macs ** (1 / 3)), 1), elements)
    one, other = factors
    unknown = any(isinstance(d, str) for v in (one, other, made) for d in v.shape)
    if kind == "convolution":
        columns = max(other.elements // length, 1)
        rows = max(made.elements // columns, 1)
        batches = 1
    else:
        batches = _batches(one, other, made, length)
        rows = max(one.elements // (length * batches), 1)
        columns = max(other.elements // (length * batches), 1)
    if unknown:
        rows, columns = max(rows, ROWS_UNKNOWN), max(columns, ROWS_UNKNOWN)
    kind = "batched" if batches > 1 else kind
    return Work(kind, macs, batches, min(rows, columns, length), elements)


def _batches(one: Value, other: Value, made: Value, length: int) -> int:
    """Return the number of products: ``bmk * bkn / (k * k * bmn)`` is ``b``."""
    pairs = one.elements * other.elements
    return max(pairs // max(length * length * made.elements, 1), 1)


def _known(extent: int | str) -> int:
    return extent if isinstance(extent, int) else ROWS_UNKNOWN


# Measured times of ops in low and in full precision; contractions by shape.
#
# Thin products are bound by memory, small ones by their launch, and a low dtype may be
# faster in one shape and slower in another. Times are therefore indexed by the smallest
# extent of a product (``thin``) and by the root of the product of the other two
# (``side``), and interpolated between measurements; outside them the nearest is used.


@dataclass(frozen=True, slots=True)
class Point:
    """One timed contraction.

    Attributes:
        thin: Smallest extent of one product.
        macs: Multiply-adds of one product.
        full: Bytes that could be moved during one multiply-add in full precision.
        low: The same in low precision.
    """

    thin: int
    macs: int
    full: float
    low: float

    @property
    def side(self) -> float:
        """Root of the product of the two larger extents."""
        return (self.macs / self.thin) ** 0.5


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of ops, as the number of bytes that could be moved meanwhile.

    Attributes:
        points: Contractions, by kind; products are always there.
        saved: Bytes that an element is smaller in low precision.
        elementwise: By canonical name of an op other than a contraction: the extra cost
            in bytes of an element, read or written, in low precision, beside its size;
            negative if it is cheaper.
    """

    points: Mapping[Kind, tuple[Point, ...]]
    saved: int
    elementwise: Mapping[str, float] = field(default_factory=dict[str, float])

    def dearer(self, canonical: str) -> float:
        """Return the extra cost of an op's element in low precision, at least 0.

        For an op without a measurement it is the median of the others.
        """
        usual = median(self.elementwise.values()) if self.elementwise else 0.0
        return max(self.elementwise.get(canonical, usual), 0.0)

    def lost(self, work: Work) -> float:
        """Return the cost of running a contraction in full instead of low, in bytes.

        It is negative if low is slower. The time saved by moving fewer bytes is
        subtracted: those bytes are counted separately, but are part of the measured
        time.
        """
        full, low = self.per_mac(work)
        return work.macs * (full - low) - self.saved * work.elements

    def speedup(self, work: Work) -> float:
        """Return the speed of a low contraction relative to a full one."""
        full, low = self.per_mac(work)
        return full / low

    def per_mac(self, work: Work) -> tuple[float, float]:
        """Return the bytes of one multiply-add in full and in low precision."""
        points = self.points.get(work.kind) or self.points["product"]
        side = (work.macs / work.batches / work.thin) ** 0.5
        return (
            _at(points, work.thin, side, lambda point: point.full),
            _at(points, work.thin, side, lambda point: point.low),
        )


def _at(
    points: Sequence[Point], thin: float, side: float, of: Callable[[Point], float]
) -> float:
    """Interpolate on logarithms: by side among equally thin points, then by thin."""
    ordered = sorted(points, key=lambda point: (point.thin, point.side))
    rows: list[tuple[float, float]] = []
    for extent, group in groupby(ordered, key=lambda point: point.thin):
        known = [(log(point.side), log(of(point))) for point in group]
        rows.append((log(extent), _between(known, log(side))))
    return exp(_between(rows, log(thin)))


def _between(known: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at ``at`` by linear interpolation of sorted points."""
    index = bisect([place for place, _ in known], at)
    if index in (0, len(known)):
        return known[max(index - 1, 0)][1]
    (left, low), (right, high) = known[index - 1], known[index]
    return low + (high - low) * (at - left) / (right - left)


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

See :mod:`amprewrite.passes.cost.cost`.
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


# Prices of accelerators by their data sheets, until they are measured.

HALF = 0.5
"""Share of the speed-up on a data sheet that contractions reach in practice.

Source: the price of the A100 among the default ones, see
:data:`amprewrite.passes.cost.cost_model.EAGER`.
"""

START = 2e-6
"""Seconds to start one kernel: a small ``Tensor.to`` in eager torch."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Figures of one accelerator.

    Attributes:
        name: Part of its name as frameworks report it.
        bandwidth: Bytes per second from its memory.
        full: Operations per second in float32, without tensor cores.
        low: Operations per second in bfloat16 or float16, dense.
    """

    name: str
    bandwidth: float
    full: float
    low: float


SHEETS = (
    Sheet("A100-PCIE-40GB", 1.555e12, 19.5e12, 312e12),
    Sheet("A100-SXM4-40GB", 1.555e12, 19.5e12, 312e12),
    Sheet("A100 80GB PCIe", 1.935e12, 19.5e12, 312e12),
    Sheet("A100", 2.039e12, 19.5e12, 312e12),
    Sheet("H100 PCIe", 2.0e12, 51e12, 756e12),
    Sheet("H100 NVL", 3.9e12, 60e12, 835e12),
    Sheet("H100", 3.35e12, 67e12, 989e12),
    Sheet("H200 NVL", 4.8e12, 60e12, 835e12),
    Sheet("H200", 4.8e12, 67e12, 989e12),
)
"""Figures by NVIDIA's data sheets of the A100, H100 and H200; the first match counts.

Those of tensor cores are printed there for sparse operands, and are half of that here.
"""


def sheet_model(base: CostModel, device: Device) -> CostModel | None:
    """Return ``base`` with the prices of a data sheet; None if there is none.

    Args:
        base: Default prices of the target. One without launches of casts (``launch``
            is 0) keeps that.
        device: The device.
    """
    sheet = next((sheet for sheet in SHEETS if sheet.name in device.name), None)
    if device.kind not in ("cuda", "gpu") or sheet is None:
        return None
    return replace(
        base,
        launch=round(START * sheet.bandwidth) if base.launch else 0,
        mac_bytes=2 * sheet.bandwidth / sheet.full,
        speedup=sheet.low / sheet.full * HALF,
        source=f"by the data sheet of {device.name}",
    )


# Prices of a target from a calibration of the device.

MARGIN = 1.05
"""Factor on measured times of low ops.

Medians of the same program differ by about 5 %, so a gain within that is not certain.
"""


def measured_model(
    base: CostModel, calibration: Calibration, low: str, full: str
) -> CostModel | None:
    """Return ``base`` with measured prices; None if ``low`` was not measured.

    Args:
        base: Default prices of the target. A target without launches of casts
            (``launch`` is 0) keeps that: contractions are kernels of a library there
            too, casts are not.
        calibration: The measured times.
        low: Name of the low dtype.
        full: Name of the full dtype.
    """
    casts = calibration.casts.get(low)
    points = _points(calibration, low) if casts and full == FULL else {}
    if casts is None or "product" not in points:
        return None
    sizes = itemsize(FULL) + itemsize(low)
    bandwidth = casts.elements * sizes / fmean((casts.down, casts.up))
    scaled: dict[Kind, tuple[Point, ...]] = {
        kind: tuple(
            replace(p, full=p.full * bandwidth, low=p.low * bandwidth * MARGIN)
            for p in found
        )
        for kind, found in points.items()
    }
    saved = itemsize(FULL) - itemsize(low)
    largest = max(scaled["product"], key=lambda point: point.macs)
    return replace(
        base,
        launch=round(casts.launch * bandwidth) if base.launch else 0,
        mac_bytes=largest.full,
        speedup=largest.full / largest.low,
        timings=Timings(scaled, saved, _elementwise(calibration, low, bandwidth)),
        source=f"measured on {calibration.device}",
    )


def _points(calibration: Calibration, low: str) -> dict[Kind, tuple[Point, ...]]:
    """Return the time of a multiply-add for each measured contraction, by kind."""
    found: dict[Kind, tuple[Point, ...]] = {}
    for timed in calibration.contractions:
        if {FULL, low} <= timed.seconds.keys():
            macs = timed.macs * timed.batches
            full, lower = timed.seconds[FULL] / macs, timed.seconds[low] / macs
            point = Point(timed.thin, timed.macs, full, lower)
            found[timed.kind] = (*found.get(timed.kind, ()), point)
    return found


def _elementwise(
    calibration: Calibration, low: str, bandwidth: float
) -> dict[str, float]:
    """Return the extra cost of an element in low precision, in bytes, by op.

    A low op saves bytes by its size, and time by the measurement; where it saves less
    time than bytes, the difference is an extra cost.
    """
    saved = itemsize(FULL) - itemsize(low)
    found: dict[str, float] = {}
    for timed in calibration.elementwise:
        if {FULL, low} <= timed.seconds.keys():
            faster = timed.seconds[FULL] - timed.seconds[low] * MARGIN
            found[timed.op] = saved - faster * bandwidth / timed.elements
    return found


# Prices on a device: by its calibration, its class, its data sheet, or the default.


def device_model(  # all but three are by keyword
    base: CostModel,
    device: Device,
    own: Calibration | None,
    *,
    low: str,
    full: str,
    weighed: bool,
) -> CostModel:
    """Return the prices on a device.

    Args:
        base: Default prices of the target.
        device: The device. One that is known by its kind alone has the default prices.
        own: Measurements of ``amprewrite calibrate`` on it.
        low: Name of the low dtype.
        full: Name of the full dtype.
        weighed: Whether plans depend on prices, so that it is worth a warning that
            those of the device are unknown.
    """
    found = measured_model(base, own, low, full) if own else None
    if found is not None or prices_are_fixed() or full != FULL:
        return found or base
    shipped = shipped_calibration(device)
    found = measured_model(base, shipped, low, full) if shipped else None
    found = found or sheet_model(base, device)
    known = shipped is not None or device.name == device.kind
    if found is None and weighed and not known:
        _warn_unpriced(device)
    return found or base


@cache
def _warn_unpriced(device: Device) -> None:
    """Warn once about a device without prices."""
    warn(
        f"no prices are known of {device}: plans weigh the default ones, and may lower "
        f"ops that are slower low there; run `amprewrite calibrate` on it, or pass "
        f"device= to plan for another"
    )
