"""The state of dynamo: the frame that it captures, the parts of a compiled callable."""
# pyright: reportPrivateUsage=false

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._guards import CompileContext

MOST_CAPTURES = 256
"""Captures of a function that are made; dynamo itself stops after eight.

Beyond its limit it runs the function as it is, in full precision. 256 is its own limit
of captures over all models of a class.
"""


def _dynamo() -> Any:
    """Return torch's dynamo, which is imported at its first use."""
    untyped: Any = torch
    return untyped._dynamo


def _conversion() -> FrameType | None:
    """Return the frame of dynamo's converter, if a capture is in progress."""
    wanted: CodeType = _dynamo().convert_frame.ConvertFrameAssert.__call__.__code__
    frames = _outwards(sys._getframe(1))
    return next((frame for frame in frames if frame.f_code is wanted), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def current_converter() -> Any:
    """Return dynamo's converter of the frame that is captured now; None outside.

    There is one for each call of ``torch.compile``.
    """
    found = _conversion()
    return None if found is None else found.f_locals["self"]


def current_code() -> CodeType | None:
    """Return the code of the frame that is captured now; None outside."""
    found = _conversion()
    return None if found is None else found.f_locals["frame"].f_code


def current_self() -> Any:
    """Return the first argument of the frame that is captured now, as of a method.

    None if there is none, and outside of a capture.
    """
    found = _conversion()
    if found is None:
        return None
    frame = found.f_locals["frame"]
    first = frame.f_code.co_varnames[:1] if frame.f_code.co_argcount else ()
    return frame.f_locals.get(*first) if first else None


def capture_on(converter: Any) -> None:
    """Raise the number of captures of a compiled function to :data:`MOST_CAPTURES`.

    A limit that the user gave to ``torch.compile`` stays.
    """
    if converter._recompile_limit is None:
        limit: int = _dynamo().config.recompile_limit
        converter._recompile_limit = max(limit, MOST_CAPTURES)


def is_last_capture(converter: Any) -> bool:
    """Return whether dynamo will not capture the current frame again."""
    current = CompileContext.current_compile_id()
    made = None if current is None else current.frame_compile_id
    most: int = _dynamo().config.accumulated_recompile_limit
    own: int | None = converter._recompile_limit
    return made is not None and made + 1 >= min(most, most if own is None else own)


def converters(compiled: Any) -> list[Any]:
    """Return dynamo's converters of a result of ``torch.compile``; none of others.

    Args:
        compiled: A module or function, or a module compiled by ``module.compile()``.
    """
    if "torch._dynamo" not in sys.modules:
        return []
    kind: Any = _dynamo().eval_frame._TorchDynamoContext
    held = [getattr(compiled, "dynamo_ctx", None)]
    run = getattr(compiled, "_compiled_call_impl", None) or compiled
    held += [cell.cell_contents for cell in getattr(run, "__closure__", None) or ()]
    context = next((one for one in held if isinstance(one, kind)), None)
    found: list[Any] = []
    part = getattr(context, "callback", None)
    while part is not None:
        found.append(part)
        inner = getattr(part, "_inner_convert", None)
        part = inner or getattr(part, "_torchdynamo_orig_backend", None)
    return found


def compiled_module(compiled: Any) -> nn.Module | None:
    """Return the module that was compiled; None for a function."""
    if isinstance(compiled, nn.Module):
        inner: Any = getattr(compiled, "_orig_mod", compiled)
        return inner
    return None


def same_backend(one: Any, other: Any) -> bool:
    """Return whether dynamo runs the captures of one converter for the other too.

    It does so for equal backends with equal options.
    """
    innermost: Any = _dynamo().eval_frame.innermost_backend
    return bool(innermost(one) == innermost(other))
