"""Gradients of a JAX function, as it scales them and as they truly are."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.unit_scaling.jax.scale import true_gradients
from amprewrite.unit_scaling.validity import STRETCH, Gradients, Pulled

SEED = 1472


def pull(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Pulled:
    """Return the gradients of the float leaves of a module, or of its first argument.

    Raises:
        ArgumentError: No output is a float array, or there is no argument.
    """
    outputs, given, names = split_parameters(model, args, kwargs)
    (scaled,) = _gradients(outputs, given, names, (1.0,))
    with true_gradients():
        true, again = _gradients(outputs, given, names, (1.0, STRETCH))
    return Pulled(scaled, true, again)


def split_parameters(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., list[Any]], list[Any], list[str]]:
    """Return a function from float parameters to float outputs, and the parameters.

    Returns:
        The function, the parameters, and their names.

    Raises:
        ArgumentError: There is no argument that could hold parameters.
    """
    if not any(map(_is_float, tree_util.tree_leaves(model))):
        if not args:
            msg = "args is empty; want the parameters as the first argument"
            raise ArgumentError(msg)
        function, held, args = model, args[0], args[1:]
    else:
        held = model

        def function(module: Any, *given: Any, **named: Any) -> Any:
            return module(*given, **named)

    paths, structure = tree_util.tree_flatten_with_path(held)
    where = [i for i, (_, leaf) in enumerate(paths) if _is_float(leaf)]
    names = [tree_util.keystr(paths[i][0], simple=True, separator=".") for i in where]

    def outputs(*floats: Any) -> list[Any]:
        leaves = [leaf for _, leaf in paths]
        for i, leaf in zip(where, floats, strict=True):
            leaves[i] = leaf
        made = function(tree_util.tree_unflatten(structure, leaves), *args, **kwargs)
        return [y for y in tree_util.tree_leaves(made) if _is_float(y)]

    given = [paths[i][1] for i in where]
    return outputs, given, names


def _is_float(leaf: Any) -> bool:
    """Return whether a leaf is an array of floats."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _gradients(
    function: Callable[..., list[Any]],
    given: list[Any],
    names: list[str],
    sizes: tuple[float, ...],
) -> list[Gradients]:
    """Return the gradients for output gradients of each size."""
    values, back = jax.vjp(jax.jit(function), *given)
    drawn = output_gradients(values)
    found: list[Gradients] = []
    for size in sizes:
        gradients = back([jnp.asarray(size * g, g.dtype) for g in drawn])
        pairs = zip(names, gradients, strict=True)
        found.append({name: np.asarray(g, dtype=np.float64) for name, g in pairs})
    return found


def output_gradients(values: list[Any]) -> list[Any]:
    """Return a gradient for each output: unit Gaussian numbers.

    Where some are scalars they are losses: they get 1, and other outputs 0.

    Raises:
        ArgumentError: There is no float output.
    """
    if not values:
        msg = "the function gives no float array; want an output, or a loss"
        raise ArgumentError(msg)
    rng = np.random.default_rng(SEED)
    if not all(y.ndim for y in values):
        return [jnp.full_like(y, not y.ndim) for y in values]
    return [jnp.asarray(rng.standard_normal(y.shape), y.dtype) for y in values]
