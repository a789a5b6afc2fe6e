"""Measure the timings of this processor's class that are part of the package.

python -m tools.shipped_prices

Only for a processor of a class in :data:`amprewrite.plan.hardware.CLASSES`, on
an otherwise idle machine.
"""

from pathlib import Path

import amprewrite.plan
from amprewrite.frameworks.jaxpr.probes import calibrate as jax
from amprewrite.frameworks.torch_fx.probes import calibrate as torch
from amprewrite.measure.timing import CPU
from amprewrite.plan.hardware import Calibration, calibration_text, class_of

FOLDER = Path(amprewrite.plan.__file__).with_name("tables")


def write(found: Calibration) -> Path:
    """Write a table to the package; return its file.

    Raises:
        SystemExit: The processor is of no known class.
    """
    device = found.device
    kind = class_of(device)
    if kind is None:
        msg = f"{device} is of no known class; add one to CLASSES"
        raise SystemExit(msg)
    file = FOLDER / f"{device.framework}-cpu-{kind}.json"
    FOLDER.mkdir(exist_ok=True)
    file.write_text(calibration_text(found), "utf-8")
    return file


def main() -> None:
    """Measure both frameworks."""
    for measure in (torch.measure, jax.measure):
        write(measure(scope=CPU))


if __name__ == "__main__":
    main()
