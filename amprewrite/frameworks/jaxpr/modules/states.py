"""States of a converted module: the kinds of its inputs, and running statistics."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amprewrite.dtypes import Processor, is_float
from amprewrite.frameworks.jaxpr.capture.promotion import Promoter
from amprewrite.frameworks.jaxpr.capture.trace import (
    Position,
    input_names,
    is_array,
    part_name,
)
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs
from amprewrite.frameworks.jaxpr.program.program import dtype_name

if TYPE_CHECKING:
    from amprewrite.ir.graph import ValueKind


# Kinds of a converted module's inputs: parameters, buffers and plain inputs.


def describe(
    names: tuple[str, ...],
    trained: Callable[[tuple[str, ...]], bool],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Inputs:
    """Describe the inputs of a function with a model's state as first argument.

    Args:
        names: Names of the arguments after the first.
        trained: Whether the array at a path in the state is a parameter.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    found = input_names((tuple(args), dict(kwargs)), ("", *names))
    leaves: Any = tree.tree_flatten_with_path(args[0])[0]
    arrays = [(path, leaf) for path, leaf in leaves if is_array(leaf)]
    kinds: dict[int, ValueKind] = {}
    for index, (path, leaf) in enumerate(arrays):
        is_parameter = trained(tuple(map(part_name, path)))
        floats = is_float(dtype_name(leaf))
        kinds[index] = "parameter" if floats and is_parameter else "buffer"
    return Inputs(tuple(name.removeprefix(".") for name in found), kinds)


# Running statistics under a policy with promotion: stored in at least float32.
#
# FLIP 1777 of Flax stores them in ``promote_types(float32, dtype)``. A bfloat16 mean
# that moves by a hundredth of a distance at each step stands still. So a call that
# updates narrower statistics reads them in float32, computes with float32, and returns
# float32; all other state keeps its dtype.

LEAST = "float32"
"""Least dtype of statistics."""


NARROW = ("bfloat16", "float16")
"""Dtypes that JAX promotes to float32; 8-bit floats have no promotion."""


def is_narrow(dtype: str) -> bool:
    """Return whether statistics of ``dtype`` are stored in float32 instead."""
    return dtype in NARROW


def _is_narrow_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_narrow(dtype_name(leaf))


def any_narrow(held: Any) -> bool:
    """Return whether a tree of statistics has one to store in float32."""
    return any(map(_is_narrow_array, tree.tree_leaves(held)))


def widened(held: Any, processor: Processor) -> Any:
    """Return a tree of statistics in the dtypes that they are stored in.

    Args:
        held: Arrays of any shapes and dtypes; narrow floats become float32.
        processor: Promotion system of the program, which records the casts.
    """
    promoter = Promoter(processor)

    def wide(leaf: Any) -> Any:
        return promoter.cast(leaf, LEAST) if _is_narrow_array(leaf) else leaf

    return tree.tree_map(wide, held)


def stored(new: Any, before: Any, processor: Processor) -> Any:
    """Return updated statistics in the dtypes of ``before``, as they were read.

    Raises:
        ComplexTruncationError: A real statistic became a complex one.
    """
    return Promoter(processor).kept(new, before, "state")


def without_narrow(held: Any, is_statistic: Callable[[tuple[Any, ...]], bool]) -> Any:
    """Return a tree of positions without the statistics that change their dtype.

    Args:
        held: Positions of the arrays in the state before a call, with their dtypes.
        is_statistic: Whether the array at a path (of keys) is a running statistic.
    """

    def kept(path: tuple[Any, ...], leaf: Any) -> Any:
        narrow = isinstance(leaf, Position) and is_narrow(leaf.dtype)
        return None if narrow and is_statistic(path) else leaf

    return tree.tree_map_with_path(kept, held)
