"""Prices on a device: by its calibration, its class, its data sheet, or the default."""

from functools import cache

from amprewrite.errors import warn
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.cost.data_sheets import sheet_model
from amprewrite.passes.cost.measured_costs import measured_model
from amprewrite.plan.hardware.calibration import FULL, Calibration, Device
from amprewrite.plan.hardware.shipped import prices_are_fixed, shipped_calibration


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
