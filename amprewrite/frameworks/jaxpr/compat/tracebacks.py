"""Tracebacks of equations: lines of the user, and casts that the user wrote."""

import functools
import inspect
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from jax._src.lax import lax as lax_functions
from jax.flatten_util import ravel_pytree

from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.ops.compounds import function_compound
from amprewrite.user_code import is_in, is_users, runs_users


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
    for frame in traceback.frames:
        if is_users(frame.file_name):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"  # noqa: PTH119  # a frame holds a plain string
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
    frames = traceback.frames if traceback is not None else ()
    found: list[tuple[str, int]] = []
    for index, frame in enumerate(frames):
        if compound := function_compound(frame.function_name):
            found.append((compound, index))
    if not found:
        return ()
    lines = [(frame.file_name, frame.line_num) for frame in frames]
    return tuple((name, tuple(lines[i + 1 :])) for name, i in reversed(found))


CASTS = frozenset(("array", "astype", "convert_element_type"))
"""Functions of JAX that users call to cast."""


WRAPPERS = CASTS | {"_astype", "asarray", "meth", "__call__"}
"""Functions of JAX between a user and a cast: methods of arrays and dtypes."""


@functools.lru_cache(maxsize=4096)
def is_written_cast(traceback: Any) -> bool:
    """Return whether an equation is a cast that the user wrote.

    It depends on the functions of JAX below the innermost frame outside of JAX: a
    promotion or a library function has others. Casts in the layers of a library are
    decided by the classes of their ops.
    """
    frames = traceback.frames if traceback is not None else ()
    return _is_cast((frame.file_name, frame.function_name) for frame in frames)


def _is_cast(frames: Iterable[tuple[str, str]]) -> bool:
    names: list[str] = []
    for file, name in frames:
        if is_in(file, "amprewrite"):
            continue  # our own promotion during a trace
        if not is_in(file, "jax", "jaxlib"):
            first = next((i for i, n in enumerate(names) if n in CASTS), len(names))
            outer = names[first:]
            return bool(outer) and WRAPPERS.issuperset(outer) and is_users(file)
        names.append(name.rpartition(".")[2])
    return False


@contextmanager
def noting_casts(note: Callable[[], None]) -> Generator[None]:
    """Call ``note`` for each written cast of float32 to itself, which JAX omits.

    If JAX has no such private function, nothing is noted.
    """
    convert = getattr(lax_functions, "_convert_element_type", None)
    if convert is None:
        yield
        return

    def noted(operand: Any, new_dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _is_full(operand, new_dtype) and _is_cast(_frames()):
            note()
        return convert(operand, new_dtype, *args, **kwargs)

    with mock.patch.object(lax_functions, "_convert_element_type", noted):
        yield


def _is_full(operand: Any, new_dtype: Any) -> bool:
    """Return whether a traced float32 array is cast to float32."""
    if new_dtype is None or not is_tracer(operand) or operand.dtype != np.float32:
        return False
    return np.dtype(new_dtype) == np.float32


def _frames() -> Iterator[tuple[str, str]]:
    """Yield the file and the function of each frame of the current stack."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def files_of(traceback: Any) -> frozenset[str]:
    """Return the files of the frames of an equation."""
    frames = traceback.frames if traceback is not None else ()
    return frozenset(frame.file_name for frame in frames)


def is_unravelled(traceback: Any) -> bool:
    """Return whether an equation splits an array that ``ravel_pytree`` joined."""
    return inspect.getfile(ravel_pytree) in files_of(traceback)
