"""Output structures that preserve ``torch.Size``.

torch flattens a ``torch.Size`` in an output to its extents, and returns a plain tuple:
its registered inverse is ``tuple`` (torch/utils/_pytree.py, torch 2.13).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree


class Sizes:
    """Placeholder for ``torch.Size`` in the structure of an output."""


def _extents(sizes: Any) -> tuple[list[Any], None]:
    """Raise: no output contains a :class:`Sizes`, only structures do."""
    msg = f"{type(sizes).__name__} stands for torch.Size in structures alone"
    raise TypeError(msg)


def _size(extents: Iterable[Any], _: object) -> torch.Size:
    return torch.Size(extents)


_pytree.register_pytree_node(
    Sizes, _extents, _size, serialized_type_name="amprewrite.Sizes"
)


def keeping_sizes(spec: Any) -> Any:
    """Return an output structure that rebuilds its ``torch.Size`` parts as such.

    Args:
        spec: Structure as ``tree_flatten`` gives it.
    """
    if spec.is_leaf():
        return spec
    parts = [keeping_sizes(part) for part in spec.children()]
    kind = Sizes if spec.type is torch.Size else spec.type
    return _pytree.TreeSpec(kind, spec.context, parts)
