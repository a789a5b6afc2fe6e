"""Devices: their names, their calibrations, the accumulators of their kernels."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from amprewrite.errors import PlanMismatchError, UnsupportedError, warn
from amprewrite.plan.fields import Extent, Seconds
from amprewrite.plan.model import Plan

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# Accumulator dtypes of low contractions on a device, as a plan fixes them.

OPERAND = "operand"
"""Accumulator of a derivative: the dtype of the operand that the gradient is for."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Accumulator dtypes of low contractions, where a program can choose them.

    Attributes:
        accumulators: Whether contractions return their full-precision sums, to be
            rounded afterwards; otherwise their kernels round.
        derivative_accumulator: Dtype of the sums of their derivatives.
    """

    accumulators: bool = False
    derivative_accumulator: Literal["low", "full", "operand"] = OPERAND


# The timings that ``amprewrite calibrate`` measures on a device, and their file.
#
# Plain data, so that frameworks measure and passes price without importing each other.
# Every device has a file of its own in ``$XDG_CACHE_HOME/amprewrite``. Its name depends
# on the device, the number of threads and the version of the framework, so that timings
# made under other conditions are not found.

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


# Devices by name, also ones that are absent, to plan for them.


def measured_devices(framework: str) -> list[Device]:
    """Return the devices that ``amprewrite calibrate`` measured for a framework.

    Unreadable files are skipped.
    """
    found: list[Device] = []
    for file in sorted(cache_folder().glob(f"{framework}-*.json")):
        try:
            calibration = read_calibration(file.read_text("utf-8"))
        except (OSError, ValueError):  # a wrong encoding is a ValueError
            continue
        found.append(calibration.device)
    return found


def named_device(
    name: str,
    framework: str,
    version: str,
    kinds: Mapping[str, str],
    present: Callable[[str], Device | None],
) -> Device:
    """Return the device called ``name``.

    For a kind: the present device of that kind, else the only measured one, else a
    device of which only the kind is known.

    Args:
        name: A kind (``cuda``), or the name of a measured device (``NVIDIA H100``).
        framework: ``torch`` or ``jax``.
        version: Version of the framework.
        kinds: The framework's kinds by the names that users give them.
        present: Returns the device of a kind; None if there is none.

    Raises:
        UnsupportedError: There is no such kind, and no measured device of that name.
    """
    measured = measured_devices(framework)
    kind = kinds.get(name.lower().partition(":")[0])
    if kind is not None:
        here = present(kind)
        same = [device for device in measured if device.kind == kind]
        unknown = Device(framework=framework, version=version, kind=kind, name=kind)
        return here or (same[0] if len(same) == 1 else unknown)
    wanted = [device for device in measured if device.name.lower() == name.lower()]
    if wanted:
        return min(wanted, key=lambda device: device.version != version)
    names = ", ".join(sorted({repr(device.name) for device in measured})) or "none"
    msg = (
        f"unknown device {name!r}; want {', '.join(kinds)}, or the name of a device "
        f"that `amprewrite calibrate` measured for {framework}; on file: {names}"
    )
    raise UnsupportedError(msg)


# Timings that are part of the package: of classes of processors, by instructions.
#
# They are used for a device without a calibration of its own. Times of low contractions
# over full ones are alike in a class; times as such are not, and plans weigh ratios.

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
    from importlib.resources import files  # noqa: PLC0415  # loads tempfile and zipfile

    file = files("amprewrite.plan") / "tables" / name
    return read_calibration(file.read_text("utf-8")) if file.is_file() else None


# Plans that were timed on this machine, and their files.
#
# A file has the plan that was the fastest one of a program under some conditions, in
# ``$XDG_CACHE_HOME/amprewrite/timed``. Its name depends on the program with its extents
# and on all conditions, so that plans timed otherwise are not found.

Conditions = tuple[str, ...]
"""Settings beside the program on which times depend: device, target, policy, ..."""


Program = tuple[str, ...]
"""A program with its extents, as lines."""


def timed_file(program: Program, conditions: Conditions) -> Path:
    """Return the file of the plan for a program."""
    text = "\n".join((*program, *conditions))
    key = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return cache_folder() / "timed" / f"{key[:24]}.json"


def load_timed(program: Program, conditions: Conditions) -> Plan | None:
    """Return the plan that was the fastest for a program; None if none was timed.

    A file that cannot be used is ignored with a warning: the plans are timed again.
    """
    file = timed_file(program, conditions)
    if not file.exists():
        return None
    try:
        return Plan.load(file)
    except PlanMismatchError as error:
        reason = str(error).partition("\n")[0]
        warn(f"{reason}; the plans of the program are timed again")
        return None


def save_timed(plan: Plan, program: Program, conditions: Conditions) -> None:
    """Write the plan for a program atomically: another process may be reading it.

    A folder that cannot be written is a warning: the conversion is right without it.
    """
    file = timed_file(program, conditions)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(plan.to_json()), "utf-8")
        part.replace(file)
    except OSError as error:
        warn(
            f"{file}: cannot be written ({error.strerror}), so that the plans of this "
            f"program are timed again next time; set XDG_CACHE_HOME to a folder that "
            f"can"
        )
