"""Converted NNX modules and their originals: attributes synchronised between them.

Both hold the same variables. Other attributes set on one module, such as the mode by
``eval()``, are seen by the other: a converted module writes plain attributes through to
its original, and copies those set on the original since.
"""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flax import nnx as flax_nnx

from amprewrite.frameworks.jaxpr.modules.conversion import PLAIN
from amprewrite.frameworks.jaxpr.modules.derived import RUNNER

nnx: Any = flax_nnx
"""Untyped view of ``flax.nnx``: its types are partial."""

Convert = Callable[[Any], Any]
"""Function that converts a module, or a container of modules."""

_NOTHING: Any = object()


@dataclass
class Twin:
    """A converted module and its original.

    Attributes:
        converted: The converted module.
        original: Its original.
        seen: Attributes of the original when it was last synchronised.
    """

    converted: weakref.ref[Any]
    original: weakref.ref[Any]
    seen: dict[str, Any]


@dataclass
class Twins:
    """The modules of one converted model with their originals, as long as both live."""

    by_id: dict[int, Twin] = field(default_factory=dict[int, Twin])

    def add(self, converted: Any, original: Any) -> None:
        """Record the original of a converted module."""
        key = id(converted)
        here = weakref.ref(converted, lambda _: self.by_id.pop(key, None))
        self.by_id[key] = Twin(here, weakref.ref(original), dict(vars(original)))

    def original(self, converted: Any) -> Any:
        """Return the original of a converted module; None if it is gone."""
        twin = self.by_id.get(id(converted))
        return None if twin is None else twin.original()

    def write(self, converted: Any, name: str, value: Any) -> None:
        """Set a plain attribute of a converted module on its original too."""
        source = self.original(converted)
        if source is not None and (value is None or isinstance(value, PLAIN)):
            setattr(source, name, value)
            self.by_id[id(converted)].seen[name] = value

    def follow(self, model: Any, convert: Convert) -> None:
        """Copy attributes set on the originals to the modules in ``model``."""
        for module in list(parts(model)):
            twin = self.by_id.get(id(module))
            source = twin and twin.original()
            if twin is None or source is None:
                continue
            now, seen = vars(source), twin.seen
            for name in {**seen, **now}:
                new = now.get(name, _NOTHING)
                if new is seen.get(name, _NOTHING):
                    continue
                if new is _NOTHING:
                    vars(module).pop(name, None)
                else:
                    object.__setattr__(module, name, convert(new))
            twin.seen = dict(now)

    def same(self, model: Any) -> Any:
        """Return the original of ``model`` if its modules are the same; else None."""
        for module in parts(model):
            source = self.original(module)
            if source is None or not self._alike(module, source):
                return None
        return self.original(model)

    def _alike(self, module: Any, source: Any) -> bool:
        mine = {name: v for name, v in vars(module).items() if name != RUNNER}
        others = vars(source)
        return mine.keys() == others.keys() and all(
            self._equal(value, others[name]) for name, value in mine.items()
        )

    def _equal(self, mine: Any, other: Any) -> bool:
        if mine is other or self.original(mine) is other is not None:
            return True
        if type(mine) is not type(other):
            return False
        if isinstance(mine, list | tuple):
            return len(mine) == len(other) and all(map(self._equal, mine, other))
        if isinstance(mine, dict):
            return mine.keys() == other.keys() and all(
                self._equal(value, other[key]) for key, value in mine.items()
            )
        return isinstance(mine, PLAIN) and mine == other


def parts(model: Any) -> Iterator[Any]:
    """Yield the modules in a model, itself first, without repetition."""
    seen = set[int]()
    rest = [model]
    while rest:
        part = rest.pop()
        if isinstance(part, nnx.Pytree):
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, nnx.Module):
                yield part
            rest += vars(part).values()
        elif isinstance(part, list | tuple):
            rest += part
        elif isinstance(part, dict):
            rest += part.values()


def rebuilt(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    """Return a copy of a part of a model with new modules and the same variables.

    Args:
        part: A module, or a value in a module.
        change: Returns an empty module for a module; None leaves it as it is.
        memo: The new module for each module, by its identity.
    """
    if isinstance(part, nnx.Pytree):
        return _module(part, change, memo)
    if type(part) in (list, tuple):
        made = [rebuilt(value, change, memo) for value in part]
        same = all(a is b for a, b in zip(made, part, strict=True))
        return part if same else type(part)(made)
    if type(part) is dict:
        found = {key: rebuilt(value, change, memo) for key, value in part.items()}
        return part if all(found[key] is part[key] for key in part) else found
    return part


def _module(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    if id(part) in memo:
        return memo[id(part)]
    if next(parts(part), None) is None:
        return part  # such as random number streams, which are state
    made = change(part)
    memo[id(part)] = part if made is None else made
    if made is None:
        return part
    for name, value in vars(part).items():
        if name != RUNNER:
            object.__setattr__(made, name, rebuilt(value, change, memo))
    return made
