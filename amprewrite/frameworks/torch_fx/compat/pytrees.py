"""Pytrees: structures of values, of arguments and of the calls of graphs."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard, cast

import torch
from torch.fx import Graph, Node
from torch.fx import _pytree as fx_pytree
from torch.fx import graph as fx_graph
from torch.fx import node as fx_node
from torch.utils import _pytree


class Trees(Protocol):
    """The functions used from torch's pytree module.

    Attributes:
        tree_leaves: Function of a tree: its leaves.
        tree_map: Function of a function and a tree: the tree of its results.
        tree_flatten: Function of a tree: its leaves and its structure.
        tree_unflatten: Function of leaves and a structure: the tree.
    """

    tree_leaves: Callable[[Any], list[Any]]
    tree_map: Callable[[Callable[[Any], Any], Any], Any]
    tree_flatten: Callable[[Any], tuple[list[Any], Any]]
    tree_unflatten: Callable[[Iterable[Any], Any], Any]


pytree: Trees = cast("Any", _pytree)
"""Pytree functions of torch; there is no public name in torch 2.13."""


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether ``value`` is a list or a tuple."""
    return isinstance(value, (list, tuple))


def positional(node: Node) -> tuple[Any, ...]:
    """Return the positional arguments of ``node``, typed as Any."""
    return node.args


def map_arguments(arguments: Any, function: Callable[[Any], Any]) -> Any:
    """Return arguments of a node with ``function`` applied to their innermost parts."""
    return fx_node.map_aggregate(arguments, function)


def call_structure(graph: Graph) -> Any:
    """Return the calling convention of an exported graph; None if it has none."""
    return getattr(graph._codegen, "pytree_info", None)


def set_call_structure(
    graph: Graph, names: list[str], inside: Any, outside: Any
) -> None:
    """Give ``graph`` the calling convention of exported graphs.

    Args:
        graph: The graph.
        names: Names of the arguments.
        inside: Structure of the arguments, from :func:`structure_of`.
        outside: Structure of the output.
    """

    def spec(structure: Any) -> Any:
        if structure is None:
            return pytree.tree_flatten(0)[1]
        kind, context, parts = structure
        return _pytree.TreeSpec(kind, context, [spec(part) for part in parts])

    info = fx_graph._PyTreeInfo(names, spec(inside), spec(outside))
    graph.set_codegen(fx_graph._PyTreeCodeGen(info))


def structure_of(spec: Any) -> Any:
    """Return the kind, context and parts of ``spec``; None for a leaf.

    The result can be pickled without the warning that ``spec`` itself gives.
    """
    if spec.is_leaf():
        return None
    return spec.type, spec.context, [structure_of(part) for part in spec.children()]


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


def flatten_by(tree: Any, structure: Any) -> list[Any]:
    """Return the leaves of ``tree`` in the order of a structure that it has."""
    return fx_pytree.tree_flatten_spec(tree, structure)


# Output structures that preserve ``torch.Size``.
#
# torch flattens a ``torch.Size`` in an output to its extents, and returns a plain
# tuple: its registered inverse is ``tuple`` (torch/utils/_pytree.py, torch 2.13).


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
