"""Kinds of a converted module's inputs: parameters, buffers and plain inputs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.capture.trace import input_names, is_array, part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs
from amprewrite.frameworks.jaxpr.program.ops import dtype_name

if TYPE_CHECKING:
    from amprewrite.ir.graph import ValueKind

tree: Any = tree_util
"""Untyped view of ``jax.tree_util``: JAX's types are partial."""


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
