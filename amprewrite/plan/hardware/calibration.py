"""The timings that ``amprewrite calibrate`` measures on a device, and their file.

Plain data, so that frameworks measure and passes price without importing each other.
Every device has a file of its own in ``$XDG_CACHE_HOME/amprewrite``. Its name depends
on the device, the number of threads and the version of the framework, so that timings
made under other conditions are not found.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from amprewrite.errors import UnsupportedError, warn
from amprewrite.plan.fields import Extent, Seconds

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FULL = "float32"
"""Dtype that the low dtypes are compared with."""

Kind = Literal["product", "batched", "convolution", "attention"]
"""Kinds of contractions that take different times at equal extents."""


class _Table:
    """Base of the tables of a file, which have no other keys than their fields."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Device(_Table):
    """Conditions under which timings hold.

    Attributes:
        framework: ``torch`` or ``jax``.
        version: Version of the framework.
        kind: The framework's name for the kind of device: ``cpu``, ``cuda``, ``tpu``,
            ...
        name: Model of the processor.
        features: Other conditions that change times: instructions, threads, TF32.
    """

    framework: str
    version: str
    kind: str
    name: str
    features: str = ""

    def __str__(self) -> str:
        """Return the device, its features and the framework as text."""
        extra = f", {self.features}" if self.features else ""
        return f"{self.name} ({self.kind}{extra}) by {self.framework} {self.version}"


@dataclass(frozen=True, kw_only=True)
class Contraction(_Table):
    """Times of one contraction, or of a batch of equal ones.

    Attributes:
        kind: Which kernel.
        thin: Smallest of the three extents of one product.
        macs: Multiply-adds of one product.
        batches: Number of products.
        seconds: Time of all of them, by dtype; operands and result have that dtype.
    """

    kind: Kind
    thin: Extent
    macs: Extent
    batches: Extent = 1
    seconds: Mapping[str, Seconds]


@dataclass(frozen=True, kw_only=True)
class Elementwise(_Table):
    """Times of an elementwise op.

    Attributes:
        op: Its name.
        elements: Number of elements that it reads and writes.
        seconds: Its time, by dtype of its operands and result.
    """

    op: str
    elements: Extent
    seconds: Mapping[str, Seconds]


@dataclass(frozen=True, kw_only=True)
class Casts(_Table):
    """Times of casts between float32 and a low dtype.

    Attributes:
        elements: Elements of the large tensor.
        down: Seconds to cast it to low.
        up: Seconds to cast it back.
        launch: Seconds to cast a tensor of a few elements.
    """

    elements: Extent
    down: Seconds
    up: Seconds
    launch: Seconds


@dataclass(frozen=True, kw_only=True)
class Calibration(_Table):
    """Times measured on one device.

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
    """Return the folder of calibrations: ``$XDG_CACHE_HOME/amprewrite``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "amprewrite"


def cache_file(device: Device) -> Path:
    """Return the calibration file of ``device``."""
    key = _adapter(Device).dump_json(device)
    name = f"{device.framework}-{device.kind}-{hashlib.sha256(key).hexdigest()[:12]}"
    return cache_folder() / f"{name}.json"


@cache
def _adapter(kind: type[_Table]) -> "TypeAdapter[_Table]":
    from pydantic import TypeAdapter  # noqa: PLC0415  # only to read or write a file

    return TypeAdapter(kind)


def read_calibration(text: str) -> Calibration:
    """Return the calibration that a file holds.

    Raises:
        ValueError: The text is none; the message has the first mistake and its place.
    """
    from pydantic import ValidationError  # noqa: PLC0415  # only to read a file

    try:
        found = _adapter(Calibration).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        msg = f"{where}: {first['msg']}" if where else first["msg"]
        raise ValueError(msg) from error
    assert isinstance(found, Calibration)
    return found


def calibration_text(calibration: Calibration) -> str:
    """Return the text of a file that holds ``calibration``.

    Raises:
        ValueError: It is not valid: a time that is not above zero, say.
    """
    text = _adapter(Calibration).dump_json(calibration, indent=1).decode("utf-8")
    read_calibration(text)
    return f"{text}\n"


def load_calibration(device: Device) -> Calibration | None:
    """Return the calibration of ``device``; None if there is none.

    A file that cannot be used is ignored with a warning: the cache affects only prices,
    and a conversion is right in either case.
    """
    file = cache_file(device)
    try:
        found = read_calibration(file.read_text("utf-8"))
        reason = "" if found.device == device else f"it is of {found.device}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # a wrong encoding is a ValueError
        found, reason = None, str(error).split("\n")[0]
    if not reason:
        return found
    warn(
        f"{file}: is no file of `amprewrite calibrate` ({reason}); the default prices "
        f"are used instead; run `amprewrite calibrate` to measure again"
    )
    return None


def save_calibration(calibration: Calibration) -> Path:
    """Write ``calibration`` to its file atomically: another process may be reading it.

    Raises:
        UnsupportedError: It cannot be written.
        ValueError: It is not valid: a time that is not above zero, say.
    """
    file, text = cache_file(calibration.device), calibration_text(calibration)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(text, "utf-8")
        part.replace(file)
    except OSError as error:
        msg = (
            f"{file}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a "
            f"folder that can"
        )
        raise UnsupportedError(msg) from error
    return file
