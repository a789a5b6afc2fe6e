"""What ``amprewrite calibrate`` measured on a device, and the file that keeps it.

Plain data, so that frameworks measure and passes price without each other. Every
device has a file of its own, in ``$XDG_CACHE_HOME/amprewrite``; what was measured on
another device, with another number of threads or by another version of the framework
has another name, and is not found.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amprewrite.errors import UnsupportedError, warn

FULL = "float32"
"""The dtype that low ones are compared with."""

Kind = Literal["product", "batched", "convolution", "attention"]
"""Contractions whose times differ though their extents do not."""

Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Table):
    """What times hold for.

    Attributes:
        framework: ``torch`` or ``jax``.
        version: Version of the framework.
        kind: ``cpu``, ``cuda``, ``gpu``, ``tpu``: the name that the framework has.
        name: Model of the processor.
        features: What else times depend on: instructions, threads, TF32.
    """

    framework: str
    version: str
    kind: str
    name: str
    features: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        extra = f", {self.features}" if self.features else ""
        return f"{self.name} ({self.kind}{extra}) by {self.framework} {self.version}"


class Contraction(_Table):
    """Times of one contraction, or of several side by side.

    Attributes:
        kind: Which kernel.
        thin: Smallest of the three extents of one product.
        macs: Multiply-adds of one product.
        batches: How many products there are.
        seconds: Time of all of them, by dtype; operands and result have that dtype.
    """

    kind: Kind
    thin: Count
    macs: Count
    batches: Count = 1
    seconds: Mapping[str, Seconds]


class Elementwise(_Table):
    """Times of an op that is no contraction.

    Attributes:
        op: Its name.
        elements: How many elements it reads and makes.
        seconds: Its time, by dtype of what it reads and makes.
    """

    op: str
    elements: Count
    seconds: Mapping[str, Seconds]


class Casts(_Table):
    """Times of casts between float32 and a low dtype.

    Attributes:
        elements: Elements of the large tensor.
        down: Seconds to cast it to low.
        up: Seconds to cast it back.
        launch: Seconds to cast a tensor of a few elements.
    """

    elements: Count
    down: Seconds
    up: Seconds
    launch: Seconds


class Calibration(_Table):
    """What was measured on one device.

    Attributes:
        format: Version of this form.
        device: The device.
        contractions: Times of contractions.
        elementwise: Times of other ops.
        casts: Times of casts, by low dtype.
        emits_accumulators: For JAX: whether bfloat16 contractions are faster where
            they hand over their float32 accumulators, and round these afterwards.
    """

    format: Literal[1] = 1
    device: Device
    contractions: tuple[Contraction, ...]
    elementwise: tuple[Elementwise, ...]
    casts: Mapping[str, Casts]
    emits_accumulators: bool | None = None


def cache_folder() -> Path:
    """Return where measurements are kept: ``$XDG_CACHE_HOME/amprewrite``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "amprewrite"


def cache_file(device: Device) -> Path:
    """Return the file of ``device``."""
    key = device.model_dump_json().encode("utf-8")
    name = f"{device.framework}-{device.kind}-{hashlib.sha256(key).hexdigest()[:12]}"
    return cache_folder() / f"{name}.json"


def load_calibration(device: Device) -> Calibration | None:
    """Return what was measured on ``device``; None if nothing was.

    A file that cannot be used is left out with a warning: a cache must not stop a
    conversion, whose result is right in either way.
    """
    file = cache_file(device)
    try:
        found = Calibration.model_validate_json(file.read_text("utf-8"))
        reason = "" if found.device == device else f"it is of {found.device}"
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        found, reason = None, f"{where}: {first['msg']}" if where else first["msg"]
    except (OSError, UnicodeDecodeError) as error:
        found, reason = None, str(error).split("\n")[0]
    if not reason:
        return found
    warn(
        f"{file}: is not what `amprewrite calibrate` writes ({reason}); the default "
        f"prices are used instead; run `amprewrite calibrate` to measure again"
    )
    return None


def save_calibration(calibration: Calibration) -> Path:
    """Write ``calibration`` to its file at once: another process may read it now.

    Raises:
        UnsupportedError: It cannot be written.
    """
    file = cache_file(calibration.device)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(calibration.model_dump_json(indent=1) + "\n", "utf-8")
        part.replace(file)
    except OSError as error:
        msg = (
            f"{file}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a "
            f"folder that can"
        )
        raise UnsupportedError(msg) from error
    return file
