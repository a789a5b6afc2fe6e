"""Gradients of a JAX function, as it scales them and as they truly are."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.watching import (
    output_gradients,
    split_parameters,
)
from amprewrite.unit_scaling.jax.scale import true_gradients
from amprewrite.unit_scaling.validity import STRETCH, Gradients, Pulled


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
