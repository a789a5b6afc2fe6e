"""Keys of call arguments: equal for calls that the same program runs."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

import torch

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import pytrees

CallKey = tuple[object, ...]
"""Key of one call."""

_VALUES = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype))
"""Types of arguments with a value that is part of the program."""


NESTED = (
    "an argument is a nested tensor of the strided layout, which has no shape and "
    "which no capture of torch takes; want one of torch.nested.nested_tensor(..., "
    "layout=torch.jagged), or a padded tensor"
)
"""Message about a nested tensor of the older layout."""


def call_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallKey:
    """Return the key of a call.

    A tensor counts by shape, dtype and device, a number, a flag, a string and None by
    its value, a list, a tuple and a dict by type and parts, anything else by its
    structure as a pytree.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        UnsupportedError: A tensor has no shape: a nested one of the strided layout.
    """
    if not kwargs:
        return tuple(map(_part_key, args))
    return (
        *map(_part_key, args),
        tuple(kwargs),
        *map(_part_key, kwargs.values()),
    )


def _part_key(part: Any) -> object:
    if isinstance(part, torch.Tensor):
        try:
            return part.shape, part.dtype, part.device
        except RuntimeError:  # a nested tensor without a shape
            raise UnsupportedError(NESTED) from None
    kind = cast("type[Any]", type(part))
    if kind in _VALUES or isinstance(part, Enum):
        # Zeros of floats have signs, and a NaN is not itself.
        return kind, repr(part) if kind is float or kind is complex else part
    if kind is list or kind is tuple:
        return kind, *map(_part_key, part)
    if kind is dict:
        return kind, *part, *map(_part_key, part.values())
    return _other_key(kind, part)


def _other_key(kind: type[Any], part: Any) -> object:
    leaves, structure = pytrees.pytree.tree_flatten(part)
    if len(leaves) == 1 and leaves[0] is part:  # no pytree: dynamo's, with its guards
        return kind
    return kind, repr(structure), *map(_part_key, leaves)
