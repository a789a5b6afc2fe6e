"""PyTorch as the core uses it: see :class:`amprewrite.frameworks.base.Framework`.

The core knows models as objects; here they are checked, and become models of torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from torch.export import ExportedProgram

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Attached, Request, Watcher
from amprewrite.frameworks.torch_fx import convert as conversion
from amprewrite.frameworks.torch_fx import watching
from amprewrite.frameworks.torch_fx.capture.program import Model, open_program
from amprewrite.frameworks.torch_fx.comparison import ablation as restored
from amprewrite.frameworks.torch_fx.comparison import compare
from amprewrite.frameworks.torch_fx.compiled_plans import lowerings_of, plan_of
from amprewrite.frameworks.torch_fx.derived.original import original
from amprewrite.frameworks.torch_fx.devices import samples
from amprewrite.frameworks.torch_fx.probes.calibrate import (
    default_target,
    device_of,
    kernels,
)
from amprewrite.frameworks.torch_fx.probes.calibrate import measure as calibrate
from amprewrite.frameworks.torch_fx.probes.calibrate import named as device_named
from amprewrite.frameworks.torch_fx.saved import program_export
from amprewrite.frameworks.torch_fx.saved.program_export import program_files
from amprewrite.measure.compare import Steps
from amprewrite.measure.runs import Ablation, Call, Look, Measured, Observe, Walked
from amprewrite.plan import Plan
from amprewrite.plan.lines import lowering_comments

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


def convert(model: object, request: Request) -> nn.Module:
    """Return the converted model; see :func:`amprewrite.convert`."""
    return conversion.convert(_model(model), request)


def inspect(model: object, request: Request) -> Plan:
    """Return the plan that :func:`convert` would apply, or has applied."""
    return conversion.inspect(_model(model), request)


def measure(
    original: object, converted: object, call: Call, steps: Steps | None = None
) -> Measured:
    """Run a model, its converted form and the baselines."""
    return compare.measure(_model(original), _callable(converted), call, steps)


def walk(original: object, converted: object, call: Call, observe: Observe) -> Walked:
    """Step through a model and its converted form op by op."""
    return compare.walk(_model(original), converted, call, observe)


def attach(converted: object, watcher: Watcher) -> Attached:
    """Show the calls of a model to a watcher, each before it runs."""
    return watching.attach(_module(converted), watcher)


def observe(
    model: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    look: Look,
    *,
    gradients: bool = True,
) -> None:
    """Run a model, and show its parameters and tensors, with their gradients."""
    watching.observe(_module(model), args, kwargs, look, gradients=gradients)


def ablation(original: object, converted: object, call: Call) -> Ablation | str:
    """Return a converted model with ops that can be restored, or why there is none."""
    return restored.ablation(_model(original), converted, call)


def graph_text(
    model: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    """Return a model as the text of a program graph, with the lowering of its calls."""
    found = _module(model)
    text = program_export.graph_text(found, args, kwargs)
    lowered = lowering_comments(lowerings_of(found, args, kwargs))
    return f"{text}\n{lowered}" if lowered else text


def save_program(
    converted: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    path: Path,
) -> None:
    """Export a converted model and write it to a file."""
    program_export.save_program(_module(converted), args, kwargs, path)


def _model(found: object) -> Model:
    if not isinstance(found, (nn.Module, ExportedProgram)):
        _refuse(found, "a torch.nn.Module, GraphModule or ExportedProgram")
    return found


def _module(found: object) -> nn.Module:
    model = _model(found)
    return model if isinstance(model, nn.Module) else open_program(model)


def _callable(found: object) -> Callable[..., Any]:
    if not callable(found):
        _refuse(found, "a converted model, or a callable of its signature")
    return found


def _refuse(found: object, wanted: str) -> NoReturn:
    """Raise an error that names the kind of an object.

    Raises:
        UnsupportedError: Always.
    """
    msg = f"found a {type(found).__name__}; want {wanted}"
    raise UnsupportedError(msg)
