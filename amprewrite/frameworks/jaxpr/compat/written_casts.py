"""Casts that the user wrote: known by the functions between the user and a cast.

JAX omits a cast of float32 to itself, so such a cast is seen only while the function
that writes it runs, and JAX runs a function once for each of its keys. Under
:func:`noting_casts` the key is one of our own.
"""

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Literal

import numpy as np
from jax._src.lax import lax as lax_functions

from amprewrite.frameworks.jaxpr.compat.tracers import (
    is_traced_number,
    is_tracer,
)
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.user_code import is_in, is_users

CASTS = frozenset(("array", "astype", "convert_element_type"))
"""Functions of JAX that users call to cast."""

WRAPPERS = CASTS | {"_astype", "asarray", "meth", "__call__"}
"""Functions of JAX between a user and a cast: methods of arrays and dtypes."""

Owner = Literal["own", "jax", "library", "user"]
"""Origin of a function; ``own`` is this package."""

_FULL = np.dtype(np.float32)

_OMITS = "_convert_element_type"
"""Private function of JAX that omits the cast."""

_owners: dict[int, tuple[CodeType, Owner]] = {}  # by identity: a hash takes longer
_note: ContextVar[Callable[[], None] | None] = ContextVar("note", default=None)
_noted: Any = jax.make_user_context("")  # in JAX's keys of traces
_runs = itertools.count()
_lock = threading.Lock()
_replaced: list[Any] = []  # the function of JAX, once for each context that is open


def owner_of(code: CodeType) -> Owner:
    """Return the origin of a function."""
    found = _owners.get(id(code))
    if found is None:
        found = _owners[id(code)] = code, _owner_of(code.co_filename)
    return found[1]


def _owner_of(file: str) -> Owner:
    if is_in(file, "amprewrite"):
        return "own"
    if is_in(file, "jax", "jaxlib"):
        return "jax"
    return "user" if is_users(file) else "library"


def is_written_cast(traceback: Any) -> bool:
    """Return whether an equation is a cast that the user wrote.

    It depends on the functions of JAX below the innermost frame outside of JAX: a
    promotion or a library function has others. Casts in the layers of a library are
    decided by the classes of their ops.
    """
    return traceback is not None and _is_cast(traceback.raw_frames()[0])


def _is_cast(codes: Iterable[CodeType]) -> bool:
    casts = False
    for code in codes:  # innermost first
        known = _owners.get(id(code))
        owner = known[1] if known else owner_of(code)
        if owner == "own":
            continue  # our own promotion during a trace
        if owner != "jax":
            return casts and owner == "user"
        casts = casts or code.co_name in CASTS
        if casts and code.co_name not in WRAPPERS:
            return False
    return False


@contextmanager
def noting_casts(note: Callable[[], None], key: str = "") -> Generator[None]:
    """Call ``note`` for each written cast of float32 to itself, which JAX omits.

    In a version of JAX without the private function that omits the cast, ``note`` is
    called at once, since any may be.

    Args:
        note: Called without arguments.
        key: Traces under other keys are not used; empty for a new key.
    """
    if not hasattr(lax_functions, _OMITS):
        note()
        yield
        return

    around = _note.get()

    def noted() -> None:
        note()
        if around is not None:
            around()

    with _lock:
        if not _replaced:
            convert = getattr(lax_functions, _OMITS)
            setattr(lax_functions, _OMITS, _seen(convert))
            _replaced.append(convert)
        else:
            _replaced.append(_replaced[0])
    token = _note.set(noted)
    try:
        with _noted(key or f"run {next(_runs)}"):
            yield
    finally:
        _note.reset(token)
        with _lock:
            convert = _replaced.pop()
            if not _replaced:
                setattr(lax_functions, _OMITS, convert)


def _seen(convert: Any) -> Any:
    """Return the function of JAX, with casts of this thread noted."""

    @functools.wraps(convert)
    def seen(operand: Any, new_dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        note = _note.get()
        if note is not None and _is_full(operand, new_dtype) and _is_cast(_running()):
            note()
        return convert(operand, new_dtype, *args, **kwargs)

    return seen


def _is_full(operand: Any, new_dtype: Any) -> bool:
    """Return whether a traced float32 array is cast to float32.

    A number is none: in a low trace JAX computes its cast, so that nothing is left.
    """
    if new_dtype is None or not is_tracer(operand) or operand.dtype != _FULL:
        return False
    return np.dtype(new_dtype) == _FULL and not is_traced_number(operand)


def _running() -> Iterator[CodeType]:
    """Yield the functions of the current stack, innermost first."""
    frame: FrameType | None = inspect.currentframe()
    frame = frame.f_back if frame is not None else None  # its own is no caller
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
