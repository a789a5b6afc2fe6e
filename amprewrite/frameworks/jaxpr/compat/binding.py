"""Hooks before each primitive, loop and state update that is traced.

JAX checks dtypes inside ``Primitive.bind`` and inside ``scan``, ``while_loop`` and
``cond``, Equinox inside ``State.set``, and none has an earlier hook: while a watcher is
active, these functions are replaced in the process. Only the watching thread is
affected.
"""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
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

Attribute = tuple[Any, str, Callable[[Any], Any]]
"""A module or class, the name of an attribute that it defines itself, and a wrapper.

The wrapper returns the replacement of the original: the same in all contexts.
"""

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
_uses = Counter[tuple[int, str]]()
_originals: dict[tuple[int, str], Any] = {}


@contextmanager
def replaced(*attributes: Attribute) -> Generator[None]:
    """Replace attributes in the process while at least one context needs them."""
    with _lock:
        for holder, name, wrapped in attributes:
            key = id(holder), name
            _uses[key] += 1
            if _uses[key] == 1:
                _originals[key] = vars(holder)[name]
                setattr(holder, name, wrapped(_originals[key]))
    try:
        yield
    finally:
        with _lock:
            for holder, name, _ in attributes:
                key = id(holder), name
                _uses[key] -= 1
                if not _uses[key]:
                    setattr(holder, name, _originals.pop(key))


@contextmanager
def watching(watcher: Watcher, key: str) -> Generator[None]:
    """Activate ``watcher`` for the traces inside the context, in this thread.

    Args:
        watcher: The callbacks.
        key: Key of the traces' dependence on it; other keys have other traces.
    """
    token = _watcher.set(watcher)
    try:
        with replaced(*_hooks()), _watched(key):
            yield
    finally:
        _watcher.reset(token)


@contextmanager
def unwatched() -> Generator[None]:
    """Bind primitives inside the context without a watcher."""
    token = _watcher.set(None)
    try:
        yield
    finally:
        _watcher.reset(token)


def _hooks() -> Iterator[Attribute]:
    """Yield the functions that a watcher is called by."""
    yield jex.Primitive, "bind", _seen_bind
    for name in FUNCTIONS:
        for place in _PLACES:
            if hasattr(place, name):
                yield place, name, functools.partial(_seen_function, name)
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        yield equinox.nn.State, "set", functools.partial(_seen_function, STATE)


def _seen_bind(bind: Any) -> Any:
    @functools.wraps(bind)
    def seen(self: Any, *args: Any, **params: Any) -> Any:
        watcher = _watcher.get()
        given = args if watcher is None else watcher.operands(self, args)
        return bind(self, *given, **params)

    return seen


def _seen_function(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def seen(*args: Any, **kwargs: Any) -> Any:
        watcher = _watcher.get()
        if watcher is None or name not in watcher.functions:
            return original(*args, **kwargs)
        return watcher.functions[name](original, *args, **kwargs)

    return seen
