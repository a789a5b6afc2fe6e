"""Detect changes of the values that a function closes over, since it was traced.

A trace captures the arrays that a function closes over: variables of enclosing
functions, globals that it names, attributes of the object that it is bound to. The
plain function would see their current values. So they are compared before each call; if
one is another object, or a NumPy array holds other numbers, the function is traced
again.
"""

# A closed-over value may be anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any
from zlib import crc32

import numpy as np

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, tree_util
from amprewrite.user_code import is_users

VALUES = (bool, int, float, complex, str, bytes)
"""Types that are compared by value."""

Held = tuple[str, Any, Any]
"""Name, key to compare, and an object to keep alive so that its identity is unique."""


AdapterOf = Callable[[Any], Any]
"""Function that returns the library adapter of a module; None for other objects."""


@dataclass
class Walk:
    """Traversal of everything that a function closes over.

    Attributes:
        adapter_of: Returns the adapter of a module; None for another object.
        seen: Identities of the visited objects.
    """

    adapter_of: AdapterOf
    seen: set[int] = field(default_factory=set[int])

    def function(self, function: Any) -> Iterator[Held]:
        """Yield the values that a function or another callable closes over."""
        if function is None or id(function) in self.seen:
            return
        self.seen.add(id(function))
        if isinstance(function, functools.partial):
            yield from self.value("arguments", (function.args, function.keywords))
            yield from self.function(function.func)
        elif isinstance(function, types.MethodType):
            yield from self.value("self", function.__self__)
            yield from self.function(function.__func__)
        elif hasattr(function, "__wrapped__"):
            yield from self.function(function.__wrapped__)
        elif isinstance(function, types.FunctionType):
            yield from self._plain(function)
        elif not isinstance(function, type):
            yield from self._object("self", function)
            yield from self.function(vars(type(function)).get("__call__"))

    def _plain(self, function: types.FunctionType) -> Iterator[Held]:
        if not is_users(function.__code__.co_filename):
            return
        for defaults in (function.__defaults__, function.__kwdefaults__):
            if defaults is not None:
                yield from self.value("defaults", defaults)
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            yield from self.value(name, held)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield from self.value(name, function.__globals__[name])

    def value(self, name: str, held: Any) -> Iterator[Held]:
        """Yield the parts of a closed-over value that may change."""
        if isinstance(held, (types.ModuleType, type)):
            return
        if callable(held) and self._is_function(held):
            yield from self.function(held)
            return
        if _holds_itself(held, ()):  # no tree to JAX, which would not come back
            yield name, id(held), held
            return
        try:
            leaves, structure = tree_util.tree_flatten(held, is_leaf=self._is_mutable)
        except (TypeError, ValueError):  # keys of a dict that cannot be sorted
            yield name, id(held), held
            return
        yield name, structure, None
        for part in leaves:
            yield from self._leaf(name, part)

    def _leaf(self, name: str, part: Any) -> Iterator[Held]:
        if isinstance(part, VALUES):
            yield name, (type(part), part), None
        elif isinstance(part, np.ndarray):
            yield name, (part.shape, str(part.dtype), crc32(part.tobytes())), None
        elif isinstance(part, jax.Array):
            yield name, id(part), part
        elif callable(part) and self._is_function(part):
            yield from self.function(part)
        elif id(part) not in self.seen:
            self.seen.add(id(part))
            yield from self._object(name, part)

    def _object(self, name: str, part: Any) -> Iterator[Held]:
        adapter = self.adapter_of(part)
        if hasattr(adapter, "state_of"):
            structure, leaves = adapter.state_of(part)
            yield name, structure, None
            for leaf in leaves:
                yield name, id(leaf), leaf
        elif is_keras(part):
            for variable in part.variables:
                yield name, id(variable.value), variable.value
        elif _is_users(type(part)) and hasattr(part, "__dict__"):
            yield name, id(part), part
            for attribute, value in vars(part).items():
                yield from self.value(f"{name}.{attribute}", value)

    def _is_function(self, held: Any) -> bool:
        kinds = (types.FunctionType, types.MethodType, functools.partial)
        return isinstance(held, kinds) or (
            hasattr(held, "__wrapped__") and self.adapter_of(held) is None
        )

    def _is_mutable(self, part: Any) -> bool:
        return hasattr(self.adapter_of(part), "state_of")


class Closed:
    """The values that a function closed over when it was last traced."""

    def __init__(self, function: Callable[..., Any], adapter_of: AdapterOf) -> None:
        """Store the function, and the lookup of module adapters."""
        self.function, self.adapter_of = function, adapter_of
        self.known: list[Held] | None = None

    def now(self) -> list[Held]:
        """Return the values that the function closes over now."""
        return list(Walk(self.adapter_of).function(self.function))

    def changed(self) -> str | None:
        """Return the name of a value that changed since the last call, if any.

        The first call has no earlier values to compare with.
        """
        now, before = self.now(), self.known
        self.known = now
        if before is None or [h[:2] for h in before] == [h[:2] for h in now]:
            return None
        pairs: Iterator[Any] = zip_longest(before, now, fillvalue=())
        old, new = next(pair for pair in pairs if pair[0][:2] != pair[1][:2])
        return str((new or old)[0])

    def leaked(self) -> str | None:
        """Return the name of state that a trace has replaced by a tracer.

        Without one, the values of now are those of the last trace. An item added to a
        container does not count: JAX raises an error where it is used.
        """
        before = self.known or []
        old = {id(part) for _, _, part in before if part is not None}
        counts = Counter(name for name, _, _ in before)
        now = self.now()
        grown = Counter(name for name, _, _ in now) - counts
        for name, _, part in now:
            is_added = name in grown and "." not in name
            if tracers.is_tracer(part) and id(part) not in old and not is_added:
                return name
        self.known = now
        return None


def is_keras(model: object) -> bool:
    """Return whether ``model`` is a layer or a model of Keras."""
    kinds: tuple[type, ...] = type(model).__mro__
    return hasattr(model, "stateless_call") and any(
        kind.__module__.partition(".")[0] == "keras" for kind in kinds
    )


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a function may read from its globals, inner ones' too."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = [*code.co_names, *(n for c in inner for n in _global_names(c))]
    return tuple(dict.fromkeys(names))


def _holds_itself(held: Any, above: tuple[int, ...]) -> bool:
    """Return whether a container is inside of itself: a namespace that names itself."""
    if not isinstance(held, (dict, list, tuple)):
        return False
    if id(held) in above:
        return True
    parts = held.values() if isinstance(held, dict) else held
    return any(_holds_itself(part, (*above, id(held))) for part in parts)


def _is_users(kind: type) -> bool:
    """Return whether a class is written by the user."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    return kind.__module__ == "__main__" or (bool(file) and is_users(file))
