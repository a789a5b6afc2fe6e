"""Attributes of a model: find those that its forward writes, and restore them.

Containers are compared one level deep, generators of random numbers by their state, the
global ones of Python and NumPy among them. Buffers are left out: a capture keeps writes
to them. Hooks that the forward registers on parts belong to the flags that say so.
"""

import copy
import pickle
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.compat.module_hooks import forward_hooks

_SET_UP = (vars(nn.Module()).keys() - {"_parameters"}) | {
    "_flat_weights",
    "_flat_weight_refs",
}
"""Attributes of torch's own modules that are no state of a call.

They are hooks, submodules, the mode, and the list that a recurrent layer makes of its
parameters.
"""

_NUMBERS = (int, float, complex, str, bytes, torch.dtype, torch.device)

_CONTAINERS: tuple[type[Any], ...] = (list, dict, set)

_GLOBAL_GENERATORS = ("random", "numpy.random")
"""Modules with a generator of their own; torch's is forked by a capture."""

Held = tuple[Any, Any]
"""An attribute's value, and a copy of its content if it is a container."""


@dataclass(frozen=True)
class Attributes:
    """Snapshot of the attributes of all modules of a model.

    Attributes:
        parts: Path and module, with its attributes by their names.
        hooks: Keys of the forward hooks.
        generators: Global generators of random numbers by name, with their states.
    """

    parts: tuple[tuple[str, nn.Module, dict[str, Held]], ...]
    hooks: frozenset[int]
    generators: tuple[tuple[str, Any, "Drawn"], ...] = ()

    @classmethod
    def of(cls, model: nn.Module, *, tensors: bool = False) -> "Attributes":
        """Record those of ``model``, except for parts that are not set up yet.

        Args:
            model: The model.
            tensors: Whether to record writes to tensors too, with a copy of each.
        """
        untyped: Any = model
        kept = (held for p in model.modules() for held in forward_hooks(p).values())
        return cls(
            tuple(
                (path, part, _held(part, tensors=tensors))
                for path, part in untyped.named_modules()
                if not any(map(is_lazy, part.parameters(recurse=False)))
            ),
            frozenset(key for held in kept for key in held),
            tuple(
                (name, sys.modules[name], Drawn.of(sys.modules[name]))
                for name in _GLOBAL_GENERATORS
                if name in sys.modules
            ),
        )

    def drawn(self) -> list[str]:
        """Return the names of the global generators that were drawn from."""
        return [name for name, held, state in self.generators if not state.holds(held)]

    def names(self) -> list[str]:
        """Return the names of changed attributes, as the model's code spells them."""
        return [
            ".".join(("self", *path.split("."), name)).replace("..", ".")
            for path, part, before in self.parts
            for name in _changed(part, before)
        ]

    def restore(self, *, hooks: bool = True) -> None:
        """Restore all recorded attributes.

        Args:
            hooks: Whether to remove the hooks that were registered meanwhile, with the
                flags that were set. Otherwise both stay.
        """
        for _, generator, state in self.generators:
            state.restore(generator)
        set_up = {part for _, part, _ in self.parts if _is_hooked(part, self.hooks)}
        for _, part, before in self.parts:
            for name in _changed(part, before, flags=bool(set_up)):
                if set_up and not hooks and vars(part).get(name) is True:
                    continue
                if name not in before:
                    del vars(part)[name]
                    continue
                value, content = before[name]
                vars(part)[name] = value
                put_back(value, content)
        for part in set_up if hooks else ():
            for held in forward_hooks(part).values():
                for key in held.keys() - self.hooks:
                    del held[key]


def _is_hooked(part: nn.Module, known: frozenset[int]) -> bool:
    return any(held.keys() - known for held in forward_hooks(part).values())


def _held(part: nn.Module, *, tensors: bool) -> dict[str, Held]:
    return {n: (v, content_of(v, tensors=tensors)) for n, v in _own(part).items()}


def _own(part: nn.Module) -> dict[str, Any]:
    if isinstance(part, torch.jit.ScriptModule):
        return {}
    return {name: v for name, v in vars(part).items() if name not in _SET_UP}


@dataclass(frozen=True)
class Written:
    """Content of a tensor that is a plain attribute, and its number of writes."""

    writes: int
    content: torch.Tensor

    def restore(self, tensor: torch.Tensor) -> None:
        """Write the content back, if another was written."""
        if tensor_internals.writes(tensor) != self.writes:
            with torch.no_grad():
                tensor.copy_(self.content)


@dataclass(frozen=True)
class Drawn:
    """State of a generator of random numbers, of Python, NumPy or torch.

    Attributes:
        state: The state, pickled.
    """

    state: bytes

    @classmethod
    def of(cls, generator: Any) -> "Drawn":
        """Return the state of an object, or of the global generator of a module."""
        get = getattr(generator, "getstate", None) or getattr(
            generator, "get_state", None
        )
        held = generator.bit_generator.state if get is None else get()
        return cls(pickle.dumps(held))

    def holds(self, generator: Any) -> bool:
        """Return whether nothing was drawn since."""
        return self == Drawn.of(generator)

    def restore(self, generator: Any) -> None:
        """Put the state back."""
        if self.holds(generator):
            return
        held = pickle.loads(self.state)  # noqa: S301  # our own bytes
        put = getattr(generator, "setstate", None) or getattr(
            generator, "set_state", None
        )
        if put is None:
            generator.bit_generator.state = held
        else:
            put(held)


def _is_generator(value: object) -> bool:
    """Return whether a value draws random numbers from a state that can be kept.

    NumPy's classes are known by their names. The system's entropy has no state.
    """
    if isinstance(value, (random.Random, torch.Generator)):
        return not isinstance(value, random.SystemRandom)
    kind = type(value)
    numpys = kind.__name__ in ("Generator", "RandomState")
    return numpys and kind.__module__.startswith("numpy.random")


def content_of(value: Any, *, tensors: bool = False) -> Any:
    """Return a copy of a container, of a tensor if asked, or the state of a generator.

    It is None for anything else.
    """
    if _is_generator(value):
        return Drawn.of(value)
    if tensors and type(value) is torch.Tensor and not value.is_meta:
        return Written(tensor_internals.writes(value), value.detach().clone())
    return copy.copy(value) if isinstance(value, _CONTAINERS) else None


def put_back(value: Any, content: Any) -> None:
    """Restore the content of a value, as :func:`content_of` returned it."""
    if isinstance(content, (Written, Drawn)):
        content.restore(value)
    elif content is not None:
        value.clear()
        add = getattr(value, "extend", None) or value.update
        add(content)


def _changed(
    part: nn.Module, before: dict[str, Held], *, flags: bool = False
) -> Iterator[str]:
    """Yield the changed attributes.

    Args:
        part: The module.
        before: Its attributes before.
        flags: Whether to yield new flags too; they only say "this is set up".
    """
    now = _own(part)
    for name in [*before, *(now.keys() - before.keys())]:
        if name not in before:
            if flags or now[name] is not True:
                yield name
        elif name not in now or not is_same(now[name], before[name]):
            yield name


def is_same(now: Any, before: Held) -> bool:
    """Return whether a value is the one before, with the same content."""
    value, content = before
    if content is None:
        return is_same_part(now, value)
    if isinstance(content, Drawn):
        return now is value and content.holds(now)
    if isinstance(content, Written):
        return now is value and tensor_internals.writes(now) == content.writes
    if now is not value or len(now) != len(content):
        return False
    if hasattr(now, "keys"):
        return now.keys() == content.keys() and all(
            is_same_part(now[key], content[key]) for key in content
        )
    return all(map(is_same_part, now, content))


def is_same_part(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or equal numbers of one type."""
    same_kind = isinstance(one, _NUMBERS) and type(one) is type(other)
    return one is other or (same_kind and one == other)
