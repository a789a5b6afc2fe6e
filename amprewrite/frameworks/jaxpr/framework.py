"""JAX as the core uses it: see :class:`amprewrite.frameworks.base.Framework`.

The core knows models as objects; here they are checked, and become functions or modules
of JAX, which have no common type.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Attached, Request, Watcher
from amprewrite.frameworks.jaxpr import compare, watching
from amprewrite.frameworks.jaxpr import convert as conversion
from amprewrite.frameworks.jaxpr.convert import original, plan_of
from amprewrite.frameworks.jaxpr.devices import samples
from amprewrite.frameworks.jaxpr.function import program_export, pure_function
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.program_export import program_files
from amprewrite.frameworks.jaxpr.probes.calibrate import (
    default_target,
    device_of,
    kernels,
)
from amprewrite.frameworks.jaxpr.probes.calibrate import measure as calibrate
from amprewrite.frameworks.jaxpr.probes.calibrate import named as device_named
from amprewrite.measure.compare import Steps
from amprewrite.measure.runs import Ablation, Call, Look, Measured, Observe, Walked
from amprewrite.plan import Plan

__all__ = [
    "ablation",
    "attach",
    "calibrate",
    "convert",
    "default_target",
    "device_named",
    "device_of",
    "graph_text",
    "inspect",
    "kernels",
    "measure",
    "observe",
    "original",
    "plan_of",
    "program_files",
    "samples",
    "save_program",
    "walk",
]


def convert(model: object, request: Request) -> object:
    """Return the converted function or module; see :func:`amprewrite.convert`."""
    return conversion.convert(_model(model), request)


def inspect(model: object, request: Request) -> Plan:
    """Return the plan that :func:`convert` would apply, or has applied."""
    return conversion.inspect(_model(model), request)


def measure(
    original: object, converted: object, call: Call, steps: Steps | None = None
) -> Measured:
    """Run a function or module, its converted form and the baselines."""
    return compare.measure(_model(original), _model(converted), call, steps)


def walk(original: object, converted: object, call: Call, observe: Observe) -> Walked:
    """Step through a model and its converted form op by op."""
    return compare.walk(_model(original), _model(converted), call, observe)


def attach(converted: object, watcher: Watcher) -> Attached:
    """Show the calls of a model to a watcher, each before it runs."""
    return watching.attach(_model(converted), watcher)


def observe(
    model: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    look: Look,
    *,
    gradients: bool = True,
) -> None:
    """Run a model, and show its parameters and tensors, with their gradients."""
    watching.observe(_model(model), args, kwargs, look, gradients=gradients)


def ablation(original: object, converted: object, call: Call) -> Ablation | str:
    """Return a converted model with ops that can be restored, or why there is none."""
    return compare.ablation(original, converted, call)


def graph_text(
    model: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    """Return a model, plain or converted, as the text of a program graph."""
    return pure_function.graph_text(_model(model), args, kwargs)


def save_program(
    converted: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    path: Path,
) -> None:
    """Write a converted model to a file that ``jax.export.deserialize`` reads."""
    program_export.save_program(_model(converted), args, kwargs, path)


def _model(found: object) -> Any:
    """Return a function or module as it is.

    Raises:
        UnsupportedError: It is neither.
    """
    if not callable(found) and adapter_of(found) is None:
        msg = (
            f"found a {type(found).__name__}; want a function of JAX arrays, or a "
            f"module of Equinox or Flax"
        )
        raise UnsupportedError(msg)
    return found
