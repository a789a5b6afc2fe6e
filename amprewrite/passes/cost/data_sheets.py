"""Prices of accelerators by their data sheets, until they are measured."""

from dataclasses import dataclass, replace

from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.plan.hardware.calibration import Device

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
