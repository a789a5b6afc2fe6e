"""The plain class of a class that was derived from it for converted models."""

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from amprewrite.frameworks.torch_fx.compat.module_parts import attributes_of
from amprewrite.frameworks.torch_fx.module.distributed import sharded_types
from amprewrite.frameworks.torch_fx.plain.watched import (
    Watched,
    WatchedTensors,
    unwatched,
)

STATE = "_amprewrite"
"""Attribute of converted models and of their parts: their programs."""

OWN_FORWARD = "_amprewrite_forward"
"""Attribute of converted models: the ``forward`` that the model had on the object.

On the converted object it would run in the place of the programs.
"""

PLAIN = "_amprewrite_plain"
"""Attribute of a derived class: the class that it is derived from."""


def follow_assigned(module: Any, _keys: object) -> None:
    """Adopt the tensors that ``load_state_dict`` assigned: a hook after it."""
    programs = attributes_of(module).get(STATE)
    if programs is not None:
        programs.follow()


def plain_class(kind: Any) -> Any:
    """Return the model's class of a derived class; other classes as they are.

    Of a class that was made of a derived one at run time, ``fully_shard``'s is left
    out, and any other (a parametrization) is made of the model's class instead.
    """
    if PLAIN in kind.__dict__:
        return getattr(kind, PLAIN)
    if not hasattr(kind, PLAIN):
        return kind
    sharded = sharded_types()
    if sharded and issubclass(kind, sharded):
        bases = [base for base in kind.__bases__ if not issubclass(base, sharded)]
        return plain_class(bases[0])
    bases = tuple(dict.fromkeys(map(plain_class, kind.__bases__)))
    body = attributes_of(kind).copy()
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    return types.new_class(kind.__name__, bases, exec_body=lambda ns: ns.update(body))


def program_class(kind: Any) -> Any:
    """Return the class by which programs are looked up: with parametrizations."""
    sharded = sharded_types()
    wrapped = bool(sharded) and issubclass(kind, sharded)
    return plain_class(kind) if wrapped or PLAIN in vars(kind) else kind


def plain_state(part: Any) -> dict[str, Any]:
    """Return the state of a converted model or part as that of a plain module."""
    return _without_conversion(plain_class(type(part)).__getstate__(part))


def state_to_copy(part: Any) -> dict[str, Any]:
    """Return the state for a deep copy.

    A parametrized class refuses to be pickled, not to be copied.
    """
    if is_parametrized(part):
        return _without_conversion(attributes_of(part))
    return plain_state(part)


def plain_copy(
    part: Any,
    memo: dict[int, Any],
    deep_copy: Callable[[Any, dict[int, Any]], Any] = copy.deepcopy,
) -> Any:
    """Return a deep copy of a converted model or part: a plain module.

    Args:
        part: The model or part; its class may have a ``__deepcopy__``, a
            ``__getstate__`` and a ``__setstate__`` of its own.
        memo: Copies made so far, as ``copy.deepcopy`` keeps them.
        deep_copy: Copies its state.
    """
    kind = plain_class(type(part))
    own = getattr(kind, "__deepcopy__", None)
    if own is None or is_parametrized(part):
        made = memo[id(part)] = plain_object(kind)
        made.__setstate__(deep_copy(state_to_copy(part), memo))
        return made
    made = own(part, memo)
    if type(made) is type(part):
        made.__class__ = kind
        attributes_of(made).pop(STATE, None)
    return made


def _without_conversion(attributes: Mapping[str, Any]) -> dict[str, Any]:
    state = dict(attributes)
    for name in (STATE, "_compiled_call_impl"):
        state.pop(name, None)
    for name, held in state.items():
        if isinstance(held, Watched) and not isinstance(held, WatchedTensors):
            state[name] = unwatched(name, held)
    return state


def made_anew(part: Any) -> set[str]:
    """Return the attributes of a module that its state leaves out.

    Its class makes them for each copy: functions of a metric that are bound to it.
    """
    kind = plain_class(type(part))
    if is_parametrized(part):
        kind = kind.__bases__[0]  # the state of a parametrized class raises
    if kind.__getstate__ is nn.Module.__getstate__:
        return set()
    if kind.__getstate__ is nn.RNNBase.__getstate__:  # it runs parametrizations
        return {"_flat_weight_refs"}
    state: Any = kind.__getstate__(part)
    if type(state) is not dict:
        return set()
    return {name for name in attributes_of(part) if name not in {STATE, *state}}


def plain_object(kind: Any) -> Any:
    """Return an object of a class without calling its ``__init__``."""
    return object.__new__(kind)
