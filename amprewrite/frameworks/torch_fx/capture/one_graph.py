"""Capture a whole model as one graph: by export, or as it was given.

A mistake in ``dynamic_shapes=`` is told from a model that export cannot capture. Such a
model is captured by dynamo, which has no ``dynamic_shapes=``; with a mistake in it,
that would silently ignore the user's request.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from amprewrite.dtypes import Processor
from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.capture.cast_intent import tell_casts
from amprewrite.frameworks.torch_fx.capture.export import export_model, offending_line
from amprewrite.frameworks.torch_fx.capture.program import (
    Captured,
    Model,
    is_program,
    open_graph,
    open_program,
)
from amprewrite.frameworks.torch_fx.capture.seen import Seen
from amprewrite.frameworks.torch_fx.compat import module_parts, pytrees
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


PER_SIGNATURE = "dynamic_shapes= is not used: dynamo captures once per signature"
"""Note in the plan of a model that export cannot capture with any shapes."""

_ADVICE = re.compile(
    r"For more information|The error above occurred|Alternatively, you could also"
)


def refuse_unused(*, captured: bool) -> None:
    """Refuse ``dynamic_shapes=`` if nothing is exported.

    Raises:
        UnsupportedError: Always; its message has the remedy.
    """
    msg = (
        "dynamic_shapes= is for a module that is exported, and this program was "
        "captured before; give it to torch.export.export"
        if captured
        else "dynamic_shapes= needs args=, so that the model can be exported; without "
        "args it is captured at its first call, once per signature"
    )
    raise UnsupportedError(msg)


def refuse_mistake(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    failure: CaptureError,
) -> None:
    """Raise if ``model`` could not be exported because of ``dynamic_shapes``.

    That is so if the model can be exported without it; or if export fails before it has
    run the model, and not in the same way as without it.

    Raises:
        CaptureError: Describes the mistake in ``dynamic_shapes``.
    """
    error = failure.__cause__ or failure
    try:
        export_model(model, args, kwargs)
    except CaptureError as other:
        plain = other.__cause__ or other
        if offending_line(error) or str(error) == str(plain):
            return
    mistakes = list(_missing_axes(dynamic_shapes, args, "args"))
    mistakes += _missing_axes(dynamic_shapes, kwargs, "kwargs")
    found = "; ".join(mistakes) or _text(error)
    msg = (
        f"dynamic_shapes= does not fit {type(model).__name__} and its arguments: "
        f"{found}. Correct it, leave the dimension out (it is then fixed), use "
        f"torch.export.Dim.AUTO, or convert without args: each signature is then "
        f"captured at its first call"
    )
    raise CaptureError(msg) from error


def _text(error: BaseException) -> str:
    """Return the message of export without its advice on further reading."""
    lines = (_ADVICE.split(line)[0].strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line).rstrip(".")


def _missing_axes(shapes: Any, given: Any, path: str) -> Iterator[str]:
    """Yield the axes that a tensor does not have; export only raises IndexError.

    Args:
        shapes: The part of ``dynamic_shapes`` for ``given``. A mapping for a sequence
            has the names of the arguments, in order.
        given: An argument, or a structure of them.
        path: Its name in messages.
    """
    if isinstance(given, torch.Tensor):
        axes = _items(shapes) if isinstance(shapes, Mapping) else {}
        for axis in axes:
            if isinstance(axis, int) and axis >= given.ndim:
                yield f"{path} has {given.ndim} dimensions, none of them {axis}"
    elif isinstance(given, Mapping) or pytrees.is_sequence(given):
        parts, wanted = _items(given), _items(shapes)
        if not isinstance(given, Mapping):
            wanted = dict(enumerate(wanted.values()))
        for key in parts.keys() & wanted.keys():
            yield from _missing_axes(wanted[key], parts[key], f"{path}[{key!r}]")


def _items(structure: Any) -> dict[Any, Any]:
    """Return the parts of a mapping or a sequence; empty for anything else."""
    if isinstance(structure, Mapping):
        return dict(cast("Mapping[Any, Any]", structure))
    return dict(enumerate(structure)) if pytrees.is_sequence(structure) else {}
