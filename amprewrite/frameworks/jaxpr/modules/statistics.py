"""Running statistics under a policy that promotes: at least float32.

FLIP 1777 of Flax stores them in ``promote_types(float32, dtype)``. A mean that is held
in bfloat16 and moves by a hundredth of a distance at each step stands still. So a call
that updates statistics of fewer bits reads them in float32, computes with that and
gives them back so; all other state keeps its dtype.
"""

from collections.abc import Callable
from typing import Any

from amprewrite.dtypes import Processor
from amprewrite.frameworks.jaxpr.capture.promotion_tracing import Promoter
from amprewrite.frameworks.jaxpr.capture.state_pairs import Position
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.program.ops import dtype_name

tree: Any = tree_util
"""JAX's types are known in part only."""

LEAST = "float32"
"""The dtype that statistics have at least."""


NARROW = ("bfloat16", "float16")
"""Dtypes that JAX promotes to it; floats of 8 bits it promotes to nothing."""


def is_narrow(dtype: str) -> bool:
    """Return whether statistics of ``dtype`` are stored in another one."""
    return dtype in NARROW


def _is_narrow_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_narrow(dtype_name(leaf))


def any_narrow(held: Any) -> bool:
    """Return whether a tree of statistics has one that is to be stored in float32."""
    return any(map(_is_narrow_array, tree.tree_leaves(held)))


def widened(held: Any, processor: Processor) -> Any:
    """Return a tree of statistics in the dtypes in which they are stored.

    Args:
        held: Arrays of any shapes and dtypes; narrow floats become float32.
        processor: What promotes the program, which notes the casts.
    """
    promoter = Promoter(processor)

    def wide(leaf: Any) -> Any:
        return promoter.cast(leaf, LEAST) if _is_narrow_array(leaf) else leaf

    return tree.tree_map(wide, held)


def stored(new: Any, before: Any, processor: Processor) -> Any:
    """Return updated statistics in the dtypes of ``before``, those that were read.

    Raises:
        ComplexTruncationError: A real statistic became a complex one.
    """
    return Promoter(processor).kept(new, before, "state")


def without_narrow(held: Any, is_statistic: Callable[[tuple[Any, ...]], bool]) -> Any:
    """Return a tree of positions without those of statistics that change their dtype.

    Args:
        held: Positions of the arrays in the state before a call, with their dtypes.
        is_statistic: Whether the array at a path (of keys) is a running statistic.
    """

    def kept(path: tuple[Any, ...], leaf: Any) -> Any:
        narrow = isinstance(leaf, Position) and is_narrow(leaf.dtype)
        return None if narrow and is_statistic(path) else leaf

    return tree.tree_map_with_path(kept, held)
