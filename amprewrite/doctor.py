"""Diagnose the installation: versions, devices, a trial of each framework."""

import platform
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from amprewrite import api, registry
from amprewrite.frameworks.base import Sample

PACKAGES = ("amprewrite", "numpy", "ml_dtypes", "torch", "jax", "jaxlib", "equinox",
            "flax", "transformers")  # fmt: skip
"""Packages of the reported versions."""

NO_FRAMEWORK = (
    "neither torch nor JAX is installed; pip install 'amprewrite[torch]' or "
    "'amprewrite[jax]'"
)


@dataclass(frozen=True)
class Trial:
    """A conversion that was tried on a device.

    Attributes:
        framework: ``torch`` or ``jax``.
        device: Name and kind of the device; empty if the framework does not load.
        bfloat16: Whether it has instructions for bfloat16; None if unknown.
        why: The instructions or the generation that this follows from.
        error: Relative L2 error of the outputs against float64; None if it failed.
        bound: The bound on it.
        failure: The error, in a line; empty if there was none.
        trace: The traceback, if an exception was raised.
    """

    framework: str
    device: str = ""
    bfloat16: bool | None = None
    why: str = ""
    error: float | None = None
    bound: float | None = None
    failure: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Versions of the installed packages, and the trials.

    Attributes:
        python: Version of Python, and the system.
        versions: Versions of :data:`PACKAGES`; None for those that are absent.
        trials: One for each device of each installed framework.
    """

    python: str
    versions: Mapping[str, str | None]
    trials: tuple[Trial, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem; empty if conversions work."""
        if not self.trials:
            return (NO_FRAMEWORK,)
        failed = [trial for trial in self.trials if trial.failure]
        return tuple(f"{trial.framework}: {trial.failure}" for trial in failed)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON data, with the key ``ok``."""
        return {"ok": not self.problems, "problems": self.problems, **asdict(self)}


def diagnose() -> Diagnosis:
    """Return the versions, and a trial for each device of each installed framework.

    A framework that does not load, and a conversion that raises, are failures of their
    trial: nothing is raised.
    """
    names = [name for name in registry.TAKES if find_spec(name) is not None]
    return Diagnosis(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions={name: _version(name) for name in PACKAGES},
        trials=tuple(trial for name in names for trial in _trials(name)),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _trials(name: str) -> Iterator[Trial]:
    _, load = registry.TAKES[name]
    try:
        samples = load().samples()
    except Exception as error:  # noqa: BLE001  # a broken installation raises anything
        yield Trial(name, failure=_line(error), trace=_trace(error))
        return
    for sample in samples:
        yield _tried(name, sample)


def _tried(name: str, sample: Sample) -> Trial:
    """Convert and verify the model of a sample."""
    device = f"{sample.device.name} ({sample.device.kind})"
    given = name, device, sample.bfloat16, sample.why
    try:
        converted = api.convert(sample.model, "bf16", args=sample.args)
        report = api.verify(sample.model, converted, sample.args)
    except Exception as error:  # noqa: BLE001  # the purpose is to report it
        return Trial(*given, failure=_line(error), trace=_trace(error))
    problems = list(report.problems)
    if not converted.plan.lowered:
        problems.append("nothing was lowered to bfloat16")
    failure = problems[0] if problems else ""
    return Trial(*given, report.error, report.bound, failure)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}".rstrip(": ")


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
