"""Values and marks of the nodes of a graph as plain data, for a pickle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import pytrees, tensor_internals

MARKS = ("amprewrite", CHOSEN)
"""Keys of metadata: marks of the writer, and choices of the model."""

_NUMBERS = (bool, int, float, complex, str, torch.dtype, torch.device, type(None))
"""Types of values that are plain data themselves."""


@dataclass(frozen=True)
class StoredValue:
    """Description of a tensor without its elements.

    Attributes:
        dtype: Its dtype.
        shape: Its extents.
        strides: Its strides, in elements.
        offset: Elements of its storage before the first one.
        device: The device that it is on.
        storage: Number of its storage: views of one storage have the same.
        bytes: Bytes of that storage.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    device: torch.device
    storage: int
    bytes: int


class Unknown(Exception):  # noqa: N818  # ends a search, and never leaves this module
    """A value that is not described: of symbolic extents, or without strides."""


@dataclass(frozen=True)
class StoredMetadata:
    """Values and marks of nodes by their names.

    Attributes:
        values: Values, with a description in the place of each tensor; of no node if
            one of them has none.
        marks: Marks.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    marks: Mapping[str, dict[str, str]] = field(
        default_factory=dict[str, dict[str, str]]
    )

    @classmethod
    def of(cls, graph: Graph) -> "StoredMetadata":
        """Return the metadata of the nodes of ``graph``.

        A program with symbolic extents, or with a sparse or nested tensor, keeps no
        values: it runs as it is written when it is loaded.
        """
        numbers: dict[int, int] = {}
        values: dict[str, Any] = {}
        marks: dict[str, dict[str, str]] = {}
        for node in graph.nodes:
            if found := {key: node.meta[key] for key in MARKS if key in node.meta}:
                marks[node.name] = found
            if "val" in node.meta:
                values[node.name] = node.meta["val"]
        try:
            described = {
                name: pytrees.pytree.tree_map(lambda x: _described(x, numbers), value)
                for name, value in values.items()
            }
        except Unknown:
            described = {}
        return cls(described, marks)

    def restore(self, graph: Graph) -> None:
        """Give the nodes of ``graph`` their marks, and their values as fake tensors."""
        fakes = tensor_internals.Fakes()

        def tensor(part: Any) -> Any:
            if not isinstance(part, StoredValue):
                return part
            storage = fakes.storage(part.storage, part.bytes)
            layout = (part.offset, part.shape, part.strides)
            return fakes.tensor(storage, part.dtype, part.device, *layout)

        for node in graph.nodes:
            node.meta.update(self.marks.get(node.name, {}))
            if node.name in self.values:
                value = self.values[node.name]
                node.meta["val"] = pytrees.pytree.tree_map(tensor, value)


def _described(value: Any, numbers: dict[int, int]) -> Any:
    """Return a value with a description in the place of a tensor.

    Args:
        value: A leaf of the value of a node.
        numbers: Numbers of storages by their identities; new ones are added.

    Raises:
        Unknown: There is no description of it.
    """
    if type(value) in _NUMBERS:
        return value
    if not isinstance(value, torch.Tensor) or not tensor_internals.is_dense(value):
        raise Unknown
    shape, strides = tuple(value.shape), tuple(value.stride())
    offset: Any = value.storage_offset()
    size = value.untyped_storage().nbytes()
    if any(type(number) is not int for number in (*shape, *strides, offset, size)):
        raise Unknown
    if value.is_conj() or value.is_neg():
        raise Unknown
    identity = tensor_internals.storage_identity(value)
    number = numbers.setdefault(identity, len(numbers))
    return StoredValue(value.dtype, shape, strides, offset, value.device, number, size)
