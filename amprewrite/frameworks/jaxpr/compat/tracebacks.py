"""Tracebacks of equations: lines of the user, and named functions around them."""

import functools
import inspect
import os
from typing import Any

from jax.flatten_util import ravel_pytree

from amprewrite.ops.compounds import function_compound
from amprewrite.user_code import is_users, runs_users


def current_line() -> str:
    """Return ``file:line`` of the user's own code that is being traced."""
    frame = inspect.currentframe()
    while frame is not None:
        if runs_users(frame):
            file = frame.f_code.co_filename
            return f"{os.path.basename(file)}:{frame.f_lineno}"  # noqa: PTH119  # a frame holds a plain string
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def source_line(traceback: Any) -> str:
    """Return ``file:line`` of the innermost frame of the user's own code."""
    if traceback is None:
        return ""
    codes, places = traceback.raw_frames()  # frames with lines take twenty times longer
    for code, place in zip(codes, places, strict=True):
        if is_users(code.co_filename):
            line = traceback.code_addr2line(code, place)
            return f"{os.path.basename(code.co_filename)}:{line}"  # noqa: PTH119  # a frame holds a plain string
    return ""


Frames = tuple[tuple[str, int], ...]
"""File and line of frames, innermost first."""


@functools.lru_cache(maxsize=4096)
def named_frames(traceback: Any) -> tuple[tuple[str, Frames], ...]:
    """Return the frames of functions that are compounds, outermost first.

    Returns:
        The compound of each, see :mod:`amprewrite.ops.compounds`, and the frames that
        called it.
    """
    if traceback is None:
        return ()
    codes, places = traceback.raw_frames()
    found = [
        (compound, index)
        for index, code in enumerate(codes)
        if (compound := function_compound(code.co_qualname))
    ]
    if not found:
        return ()
    lines = [
        (code.co_filename, traceback.code_addr2line(code, place))
        for code, place in zip(codes, places, strict=True)
    ]
    return tuple((name, tuple(lines[i + 1 :])) for name, i in reversed(found))


def is_unravelled(traceback: Any) -> bool:
    """Return whether an equation splits an array that ``ravel_pytree`` joined."""
    file = inspect.getfile(ravel_pytree)
    return traceback is not None and any(
        code.co_filename == file for code in traceback.raw_frames()[0]
    )
