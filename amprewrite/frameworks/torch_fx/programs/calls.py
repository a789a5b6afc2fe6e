"""Calls of a converted model: their keys, and the extents that vary between them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

import torch
from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import pytrees, tensor_internals

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


Extent = tuple[str, int]
"""One extent of an argument: the path of the tensor, and the dimension."""


class Extents:
    """Record of the shapes that a model was captured for.

    The first program has static extents. An extent that has another value in a later
    capture varies, and so does every other extent with the value that it has there.
    """

    def __init__(self) -> None:
        """Start without a record."""
        self._seen: dict[Extent, int] = {}
        self._varying: set[Extent] = set()

    def note(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a call that is about to be captured.

        Args:
            model: The model.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            ``dynamic_shapes`` for ``torch.export``: ``Dim.AUTO`` for each extent that
            varies, which export makes static where the model needs it; None if none
            varies.
        """
        tensors = list(_tensors(model, args, kwargs))
        self._record(tensors)
        values = {
            tensor.shape[dim]
            for path, tensor in tensors
            for dim in range(tensor.ndim)
            if (path, dim) in self._varying
        }
        shapes = torch.export.ShapesCollection()
        found = False
        for path, tensor in tensors:
            dims = {
                dim: torch.export.Dim.AUTO
                for dim, extent in enumerate(tensor.shape)
                if (path, dim) in self._varying or extent in values - {0, 1}
            }
            if dims:
                found = True
                shapes[tensor] = dims
        if not found:
            return None
        untyped: Any = shapes
        return untyped.dynamic_shapes(model, args, dict(kwargs))

    def _record(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        for path, tensor in tensors:
            for dim, extent in enumerate(tensor.shape):
                key = path, dim
                if self._seen.setdefault(key, extent) != extent:
                    self._varying.add(key)


class TracedExtents(Extents):
    """Record of the extents that a tracer of a call keeps symbolic."""

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Record a call that is being traced; see :meth:`Extents.note`."""
        super().__init__()
        for path, tensor in _tensors(model, args, kwargs):
            self._varying.update(
                (path, dim) for dim in tensor_internals.varying(tensor)
            )

    def _record(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Do nothing: the tracer has decided which extents vary."""


def _tensors(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensor arguments of a call, by the names of the parameters."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    for path, leaf in pytrees.leaves_by_path(bound):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf
