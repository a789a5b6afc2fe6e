"""Measurements of devices that there are not, for tests of what is made of them."""

from collections.abc import Callable

from amprewrite.plan.hardware import (
    Calibration,
    Casts,
    Contraction,
    Device,
    Elementwise,
)

DEVICE = Device(framework="torch", version="2.0", kind="cpu", name="Slow & Sons")

BYTE = 1e-10
"""Seconds in which a byte is moved: 10 GB/s."""

Slowness = Callable[[int], float]
"""Time of a low product of so many multiply-adds over that of a full one."""


def slow_below(macs: int) -> Slowness:
    """Small products are four times slower low, large ones four times faster."""
    return lambda count: 4.0 if count < macs else 0.25


def calibration(
    device: Device = DEVICE,
    bfloat16: Slowness = lambda _: 0.25,
    float16: Slowness = lambda _: 0.25,
    elementwise: float = 0.5,
) -> Calibration:
    """Return measurements of square products at 1e-10 s a multiply-add in full.

    Args:
        device: What they are of.
        bfloat16: How slow low products are.
        float16: The same.
        elementwise: Time of other ops low over full.
    """
    contractions: list[Contraction] = []
    for side in (8, 16, 32, 64, 128, 256):
        full = side**3 * 1e-10
        seconds = {
            "float32": full,
            "bfloat16": full * bfloat16(side**3),
            "float16": full * float16(side**3),
        }
        contractions.append(
            Contraction(kind="product", thin=side, macs=side**3, seconds=seconds)
        )
    elements, full = 2**10, 4 * 2**10 * BYTE
    seconds = dict.fromkeys(("bfloat16", "float16"), elementwise * full)
    ops = Elementwise(op="add", elements=elements, seconds={"float32": full, **seconds})
    casts = Casts(
        elements=2**10, down=6 * 2**10 * BYTE, up=6 * 2**10 * BYTE, launch=100 * BYTE
    )
    return Calibration(
        device=device,
        contractions=tuple(contractions),
        elementwise=(ops,),
        casts={"bfloat16": casts, "float16": casts},
    )
