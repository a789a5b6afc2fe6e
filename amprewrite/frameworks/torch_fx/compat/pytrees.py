"""Paths and containers of pytrees, by functions that torch does not publish."""

from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree

from amprewrite.frameworks.torch_fx.compat.private import pytree


def keystr(path: Any) -> str:
    """Return a path in a pytree as text."""
    return _pytree.keystr(path)


def leaves_by_path(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a pytree, each with its path as text."""
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        yield _pytree.keystr(path), leaf


def node_types(tree: Any) -> set[type[Any]]:
    """Return the types of the containers in a pytree."""
    found: set[type[Any]] = set()
    below = [pytree.tree_flatten(tree)[1]]
    while below:
        spec = below.pop()
        if not spec.is_leaf():
            found.add(spec.type)
            below += spec.children()
    return found
