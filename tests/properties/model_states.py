"""All that belongs to a torch model, to be compared: objects, bits, random states."""

import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn

_NUMBERS = (bool, int, float, str, type(None))
_PLAIN = ("_parameters", "_buffers", "_modules")


def seed_all(seed: int) -> None:
    """Seed every global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # models draw from it


def random_states() -> tuple[Any, ...]:
    """Return the states of the global generators."""
    numpy: Any = np.random.get_state()  # noqa: NPY002  # as above
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        (numpy[0], numpy[1].tobytes(), *numpy[2:]),
    )


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes()


class _Reader:
    """Reads a model; with identities of objects, or values alone."""

    def __init__(self, *, identities: bool) -> None:
        self.identities = identities
        self.around: set[int] = set()
        self.alive: list[Any] = []

    def read(self, value: Any) -> Any:
        """Return what a value is, by the functions of its type alone."""
        kind = type(value)
        if kind in _NUMBERS:
            return kind.__name__, repr(value)
        self.alive.append(value)
        here = (kind.__name__, id(value)) if self.identities else ()
        if id(value) in self.around:
            return here
        self.around.add(id(value))
        try:
            return (*here, *self._inside(value, kind))
        finally:
            self.around.discard(id(value))

    def _inside(self, value: Any, kind: type[Any]) -> list[Any]:  # noqa: C901, PLR0911  # a case each
        if issubclass(kind, torch.Tensor):
            content = [tuple(value.shape), str(value.dtype), bits(value)]
            if not self.identities:  # a copy of what autograd computed is detached
                return content
            grad = None if not value.is_leaf else self.read(value.grad)
            hooks = self.read(value._backward_hooks)
            where = value.data_ptr(), value.stride()
            return [*content, *where, value.requires_grad, grad, hooks]
        if issubclass(kind, nn.Module):
            space = vars(value)
            if not self.identities:  # a converted model has hooks and dicts of its own
                space = {n: v for n, v in space.items() if n in _PLAIN or n[0] != "_"}
            return self._space(space)
        if issubclass(kind, dict):
            return self._space(dict(dict.items(value)))
        for known in (list, tuple, set, frozenset, deque):
            if issubclass(kind, known):
                base: Any = known
                return [self.read(part) for part in base.__iter__(value)]
        if kind is np.ndarray:
            return [value.tobytes()]
        if hasattr(kind, "__slots__") and kind.__module__ == _HERE:
            return [self.read(getattr(value, name, None)) for name in kind.__slots__]
        if kind.__module__ == _HERE:
            return self._space(object.__getattribute__(value, "__dict__"))
        return []

    def _space(self, space: dict[Any, Any]) -> list[Any]:
        return [
            (key if type(key) in _NUMBERS else self.read(key), self.read(value))
            for key, value in space.items()
        ]


_HERE = "tests.properties.writers"


def state_of(model: nn.Module, *, identities: bool = True) -> Any:
    """Return the state of a model, which is equal while nothing has changed.

    Args:
        model: The model.
        identities: Whether the objects and their memory count, beside their values.
    """
    reader = _Reader(identities=identities)
    return reader.read(model)


def differences(one: Any, two: Any, path: str = "", *, exact: bool = True) -> list[str]:
    """Return where two states differ.

    Args:
        one: A state.
        two: Another one.
        path: Where the states are.
        exact: Whether the bits of tensors count; otherwise values that are far apart.
    """
    if isinstance(one, bytes) and isinstance(two, bytes) and not exact:
        same = len(one) == len(two) and _are_close(one, two)
        return [] if same else [f"{path}: values are far apart"]
    if type(one) is not type(two) or not isinstance(one, (tuple, list)):
        return [] if one == two else [f"{path}: {str(one)[:80]} != {str(two)[:80]}"]
    if len(one) != len(two):
        return [f"{path}: {str(one)[:300]} != {str(two)[:300]}"]
    return [
        found
        for number, (a, b) in enumerate(zip(one, two, strict=True))
        for found in differences(a, b, f"{path}/{_label(a, number)}", exact=exact)
    ]


def _label(state: Any, number: int) -> Any:
    named = isinstance(state, tuple) and state and isinstance(state[0], str)
    return state[0] if named else number


FAR = 0.15
"""Relative distance of values that were not written as often; roundings are below."""


def _are_close(one: bytes, two: bytes) -> bool:
    if len(one) % 4 or one == two:
        return one == two
    first, second = (
        np.frombuffer(bits, np.float32).astype(float) for bits in (one, two)
    )
    return bool(np.linalg.norm(first - second) <= FAR * np.linalg.norm(second))
