"""Timings that are part of the package: of classes of processors, by instructions.

They are used for a device without a calibration of its own. Times of low contractions
over full ones are alike in a class; times as such are not, and plans weigh ratios.
"""

import os
from functools import cache
from importlib.resources import files

from amprewrite.plan.hardware.calibration import (
    Calibration,
    Device,
    read_calibration,
)

CLASSES = (("amx_bf16", "amx"), ("avx512_bf16", "avx512_bf16"), ("avx2", "avx2"))
"""Instructions, the fastest for low contractions first, and the class of a processor.

Processors of the class ``avx2`` have no instructions for bfloat16; those of AVX-512
without its bfloat16 part are among them.
"""

VARIABLE = "AMPREWRITE_PRICES"
"""Environment variable: ``default`` gives the same prices on every machine."""


def prices_are_fixed() -> bool:
    """Return whether prices must not depend on the device, by :data:`VARIABLE`.

    A calibration of one's own still counts.
    """
    return os.environ.get(VARIABLE) == "default"


def class_of(device: Device) -> str | None:
    """Return the class of a processor; None if it is of no known one."""
    if device.kind != "cpu":
        return None
    have = device.features.replace(",", " ").split()
    return next((name for flag, name in CLASSES if flag in have), None)


def shipped_calibration(device: Device) -> Calibration | None:
    """Return the timings of the class of ``device``; None if there are none."""
    found = class_of(device)
    return None if found is None else _table(f"{device.framework}-cpu-{found}.json")


@cache
def _table(name: str) -> Calibration | None:
    file = files("amprewrite.plan.hardware") / "tables" / name
    return read_calibration(file.read_text("utf-8")) if file.is_file() else None
