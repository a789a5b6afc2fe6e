"""Tell a mistake in ``dynamic_shapes=`` from a model that export cannot capture.

Such a model is captured by dynamo, which has no ``dynamic_shapes=``; with a mistake in
it, that would silently ignore the user's request.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.torch_fx.capture.export import export_model, offending_line
from amprewrite.frameworks.torch_fx.compat import pytrees

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
