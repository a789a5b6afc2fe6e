"""Prices of a target from a calibration of the device."""

from dataclasses import replace
from statistics import fmean

from amprewrite.dtypes import itemsize
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.cost.timings import Point, Timings
from amprewrite.plan.hardware.calibration import FULL, Calibration, Kind

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
