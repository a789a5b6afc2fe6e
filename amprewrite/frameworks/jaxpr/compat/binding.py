"""Hooks before each primitive, loop and state update that is traced.

JAX checks dtypes inside ``Primitive.bind`` and inside ``scan``, ``while_loop`` and
``cond``, Equinox inside ``State.set``, and none has an earlier hook: while a watcher is
active, these functions are replaced in the process. Only the watching thread is
affected.
"""

import functools
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jax._src.lax.control_flow import conditionals, loops

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, lax

Operands = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
"""Function of a primitive and its operands; returns the operands to bind."""

Function = Callable[..., Any]
"""Replacement of a function, called with the original and its arguments."""

FUNCTIONS = ("cond", "scan", "switch", "while_loop")
"""Functions of ``jax.lax`` that can be replaced."""

STATE = "set_state"
"""Name under which ``equinox.nn.State.set`` is replaced."""

_PLACES: tuple[Any, ...] = (lax, loops, conditionals)
"""Modules with global names that refer to them."""


@dataclass(frozen=True)
class Watcher:
    """Callbacks for primitives and functions that are traced.

    Attributes:
        operands: Called before each primitive.
        functions: Called instead of :data:`FUNCTIONS` and :data:`STATE`, by name.
    """

    operands: Operands
    functions: Mapping[str, Function]


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_watched: Any = jax.make_user_context("")  # in JAX's keys of traces
_lock = threading.Lock()
_replaced: list[tuple[Any, str, Any]] = []
_count = [0]


@contextmanager
def watching(watcher: Watcher, key: str) -> Generator[None]:
    """Activate ``watcher`` for the traces inside the context, in this thread.

    Args:
        watcher: The callbacks.
        key: Key of the traces' dependence on it; other keys have other traces.
    """
    with _lock:
        _count[0] += 1
        if _count[0] == 1:
            _install()
    token = _watcher.set(watcher)
    try:
        with _watched(key):
            yield
    finally:
        _watcher.reset(token)
        with _lock:
            _count[0] -= 1
            if not _count[0]:
                _restore()


@contextmanager
def unwatched() -> Generator[None]:
    """Bind primitives inside the context without a watcher."""
    token = _watcher.set(None)
    try:
        yield
    finally:
        _watcher.reset(token)


def _install() -> None:
    bind = jex.Primitive.bind

    @functools.wraps(bind)
    def seen(self: Any, *args: Any, **params: Any) -> Any:
        watcher = _watcher.get()
        given = args if watcher is None else watcher.operands(self, args)
        return bind(self, *given, **params)

    _replace(jex.Primitive, "bind", seen)
    for name in FUNCTIONS:
        wrapped = _seen_function(name, getattr(lax, name))
        for place in _PLACES:
            if hasattr(place, name):
                _replace(place, name, wrapped)
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        held: Any = equinox.nn.State
        _replace(held, "set", _seen_function(STATE, held.set))


def _seen_function(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def seen(*args: Any, **kwargs: Any) -> Any:
        watcher = _watcher.get()
        if watcher is None or name not in watcher.functions:
            return original(*args, **kwargs)
        return watcher.functions[name](original, *args, **kwargs)

    return seen


def _replace(holder: Any, name: str, new: Any) -> None:
    _replaced.append((holder, name, getattr(holder, name)))
    setattr(holder, name, new)


def _restore() -> None:
    while _replaced:
        holder, name, old = _replaced.pop()
        setattr(holder, name, old)
