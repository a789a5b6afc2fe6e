"""Capture a whole model as one graph: by export, or as it was given."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from amprewrite.dtypes import Processor
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.capture.cast_intent import tell_casts
from amprewrite.frameworks.torch_fx.capture.dynamic_shapes import refuse_unused
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.program import (
    Captured,
    Model,
    is_program,
    open_graph,
    open_program,
)
from amprewrite.frameworks.torch_fx.capture.seen import Seen
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.runtime.collector import collector_paused


@collector_paused()
def capture_for(model: Model, root: nn.Module, request: Request) -> Captured:
    """Return ``model`` captured as ``request`` requires.

    Args:
        model: The model as given.
        root: Its module, possibly made from an exported program.
        request: The request. Unless it has a plan, the capture records which casts the
            model means to have, see
            :mod:`amprewrite.frameworks.torch_fx.capture.cast_intent`.

    Raises:
        CaptureError: The model cannot be captured.
        PromotionError: Operands have no common dtype.
        UnsupportedError: ``dynamic_shapes`` for a program that is captured already.
    """
    if isinstance(model, nn.Module) and not is_program(model):
        model = root = module_parts.called_plainly(model)
    call = request.args, request.kwargs, request.dynamic_shapes
    captured = capture(model, *call, request.processor, request.device)
    if request.plan is None and request.low and not is_program(model):
        given = request.args or (), request.kwargs or {}
        low = torch_dtype(request.low)
        notes = tell_casts(captured.module, root, *given, low)
        return replace(captured, notes=tuple(notes))
    return captured


def capture(
    model: Model,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any = None,
    processor: Processor | None = None,
    device: str = "",
) -> Captured:
    """Return ``model`` captured for the given call arguments.

    Args:
        model: As :func:`amprewrite.convert` takes it.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        dynamic_shapes: As ``torch.export.export`` takes it.
        processor: Promotes operands of different dtypes.
        device: Kind of the device to plan for; empty for that of the model.

    Raises:
        CaptureError: The model cannot be captured.
        PromotionError: Operands have no common dtype.
        UnsupportedError: ``dynamic_shapes`` for a program that is captured already.
    """
    if isinstance(model, nn.Module) and not is_program(model):
        given = args or (), kwargs or {}
        return export_model(model, *given, dynamic_shapes, processor, device)
    if dynamic_shapes is not None:
        refuse_unused(captured=True)
    if not isinstance(model, nn.Module):
        return Captured(open_program(model), "given as an exported program", Seen())
    return Captured(open_graph(model), "given as an ATen-level graph", Seen())
