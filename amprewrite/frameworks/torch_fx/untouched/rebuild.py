"""Deep copies of values by the functions of their types, where their classes fail."""

import copy
from collections import deque
from typing import Any, cast

from amprewrite.frameworks.torch_fx.untouched.kinds import (
    inside,
    is_users,
    kind_of,
    slots_of,
    space_of,
)

_OWN = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__", "__setstate__")
"""Methods by which a class says how its objects are copied."""

Memo = dict[int, Any]
"""Copies by the identity of their sources, as ``copy.deepcopy`` keeps them."""


def rebuilt(value: Any, memo: Memo) -> Any:
    """Return a deep copy of a value, also if methods of its class raise.

    A container is copied by the functions of its type, an object of the user's by its
    attributes.

    Args:
        value: The value.
        memo: Receives the copies.

    Raises:
        Exception: The error of ``copy.deepcopy``, where no copy can be made.
    """
    if id(value) in memo:
        return memo[id(value)]
    trial = dict(memo)  # what is copied in part is left out
    try:
        copied = copy.deepcopy(value, trial)
    except Exception:
        twin = _without_contents(value, memo)
        if twin is None:
            raise
        memo[id(value)] = twin
        _fill(twin, value, memo)
        return twin
    memo.update(trial)
    return copied


def _without_contents(value: Any, memo: Memo) -> Any:
    """Return an object of the class of a value; None if it is not known how."""
    kind = cast("type[Any]", type(value))
    container = kind_of(value)
    bases = [base for base in kind.__mro__ if is_users(base)]
    if any(name in vars(base) for base in bases for name in _OWN):
        return None
    if container is None:
        return object.__new__(kind) if is_users(kind) else None
    if container.write is None:
        parts = [rebuilt(part, memo) for part in inside(value)]
        return container.type.__new__(kind, parts)
    return container.type.__new__(kind)


def _fill(twin: Any, value: Any, memo: Memo) -> None:
    """Give a twin copies of the contents of a value."""
    container, space = kind_of(value), space_of(value)
    kind = cast("type[Any]", type(value))
    if container is not None and container.write is not None:
        if container.type is deque:
            cast("Any", deque).__init__(twin, (), value.maxlen)
        container.write(twin, [rebuilt(part, memo) for part in inside(value)])
    if space is not None:
        twin.__dict__.update({n: rebuilt(part, memo) for n, part in space.items()})
    if is_users(kind):
        slots = slots_of(kind)
        assert slots.write is not None
        slots.write(twin, [rebuilt(part, memo) for part in slots.read(value)])
