"""Remove tensors from the dicts, attributes and caches that hold them."""

import gc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

_CACHE: Any = type(lru_cache(len))
_NAMESPACE = "__module__"
"""Name in the dict of each class, which is written to by ``setattr`` alone."""


def forget(tensors: Sequence[torch.Tensor]) -> None:
    """Remove tensors from dicts and from functions with ``lru_cache``.

    Code that looks for them there computes them again. Attributes with them become
    None. In lists and sets they stay.

    Args:
        tensors: The tensors.
    """
    if tensors:
        with _thawed():
            _forget(tensors)


def held_elsewhere(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that objects of Python refer to, other than torch's.

    The record of autograd keeps some of others alive.

    Args:
        tensors: The tensors; what refers to this list does not count.
    """
    with _thawed():
        known, found = {*map(id, tensors)}, set[int]()
        holders = [h for h in _holders(tensors) if not isinstance(h, FrameType)]
        dicts: list[Any] = [one for one in holders if isinstance(one, dict)]
        owners = filter(_is_of_torch, _holders(dicts))
        inner = {id(getattr(owner, "__dict__", None)) for owner in owners}
        for one in holders:
            if not _is_of_torch(one) and id(one) not in inner:
                found.update(known.intersection(map(id, gc.get_referents(one))))
    return [tensor for tensor in tensors if id(tensor) in found]


@contextmanager
def _thawed() -> Generator[None]:
    """Let the collector know objects that a server has frozen, before it forks."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def _forget(held: Sequence[Any], depth: int = 3) -> None:
    """Remove objects, or the tuples with them, from where they are held."""
    known = {*map(id, held)}
    holders = _holders(held)
    dicts: list[Any] = [one for one in holders if isinstance(one, dict)]
    tuples: list[Any] = [one for one in holders if isinstance(one, tuple)]
    # An object has no dict that the collector knows until one is asked for.
    objects = [one for one in holders if type(one) not in (dict, tuple, list)]
    for owner in (*objects, *_holders(dicts)):
        if _is_of_torch(owner):
            dicts = [one for one in dicts if one is not getattr(owner, "__dict__", 0)]
        elif isinstance(owner, _CACHE):
            owner.cache_clear()
        elif isinstance(owner, type):
            for name in _names(owner.__dict__, known):
                setattr(owner, name, None)
        else:
            space = getattr(owner, "__dict__", {})
            space.update(dict.fromkeys(_names(space, known)))
    for one in dicts:
        for key in () if _NAMESPACE in one else _names(one, known):
            del one[key]
    if tuples and depth:
        _forget(tuples, depth - 1)


def _is_of_torch(owner: Any) -> bool:
    """Return whether the class of an object is of torch or of this package."""
    kind = owner if isinstance(owner, type) else type(owner)
    return kind.__module__.partition(".")[0] in ("torch", "amprewrite")


def _holders(held: Sequence[Any]) -> list[Any]:
    """Return the objects that refer to one of some, apart from this module's."""
    arguments = (*held,)  # Python 3.13 counts the arguments of the call, too
    referrers = gc.get_referrers(*arguments)
    return [x for x in referrers if x is not held and x is not arguments]


def _names(space: Any, known: set[int]) -> list[Any]:
    return [key for key, value in space.items() if id(value) in known]
