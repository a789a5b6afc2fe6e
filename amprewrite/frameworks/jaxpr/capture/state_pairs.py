"""Pairs of states: outputs that are updated versions of input arrays.

A jaxpr does not record this, but the trees of inputs and outputs do: an array at the
same path in the state is the same array before and after.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import Call, part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.program.ops import dtype_name

tree: Any = tree_util
"""Untyped view of ``jax.tree_util``: JAX's types are partial."""


@dataclass(frozen=True)
class Position:
    """Placeholder for an array in a tree.

    Attributes:
        index: Position of the array among those of the call.
        dtype: Name of its dtype; empty if it is not known.
    """

    index: int
    dtype: str = ""


Pair = tuple[int, int]
"""Position of an output, and position of the input that it replaces."""


def positions(call: Call, arrays: Sequence[Any] = ()) -> Any:
    """Return the tree of a call with its arrays replaced by positions.

    Args:
        call: The call.
        arrays: Its arrays, for their dtypes.
    """
    count = call.tree.num_leaves - len(call.fixed)
    dtypes = [dtype_name(x) for x in arrays] or [""] * count
    return call.arguments([Position(i, dtype) for i, dtype in enumerate(dtypes)])


def replaced(before: Any, after: Any) -> Iterator[Pair]:
    """Yield the pairs of arrays at equal paths in ``after`` and ``before``.

    Args:
        before: A tree of positions among the input arrays.
        after: A tree of positions among the output arrays.
    """
    old = dict(_by_path(before))
    for path, output in _by_path(after):
        if path in old:
            yield output.index, old[path].index


def held_by(kind: type, before: Any, after: Any) -> Iterator[Pair]:
    """Yield the pairs of :func:`replaced` in the containers of ``kind``.

    A container replaces one with the same tree structure.
    """
    old = {tree.tree_structure(held): held for held in _holders(kind, before)}
    for held in _holders(kind, after):
        structure = tree.tree_structure(held)
        if structure in old:
            yield from replaced(old[structure], held)


def _holders(kind: type, held: Any) -> Iterable[Any]:
    def is_leaf(part: object) -> bool:
        return isinstance(part, kind)

    return filter(is_leaf, tree.tree_leaves(held, is_leaf=is_leaf))


def _by_path(held: Any) -> Iterator[tuple[tuple[str, ...], Position]]:
    for path, leaf in tree.tree_flatten_with_path(held)[0]:
        if isinstance(leaf, Position):
            yield tuple(map(part_name, path)), leaf
