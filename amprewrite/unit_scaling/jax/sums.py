"""Scaled sums and residual branches."""

from collections.abc import Callable
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.unit_scaling.jax.numbers import shape_of
from amprewrite.unit_scaling.jax.scale import scale_bwd, scale_fwd
from amprewrite.unit_scaling.rules import constrained, extents, shapes

Array = Any
Constraint = str | None


def add(left: Array, right: Array, constraint: Constraint = "to_output_scale") -> Array:
    """Add arrays of unit scale; the gradient of a broadcast one sums its copies."""
    left, right = jnp.asarray(left), jnp.asarray(right)
    given = shape_of(left), shape_of(right)
    found = shapes.of_add(*given, shape_of(jnp.broadcast_arrays(left, right)[0]))
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(left + right, factors.forward)


def residual_split(x: Array, tau: float = 1.0) -> tuple[Array, Array]:
    """Return ``x`` for the branch and for the skip, with their gradients weighed.

    Args:
        x: Where both paths start.
        tau: Weight of the branch; that of the skip is 1.
    """
    backward = extents.residual(tau=tau).backward
    return scale_bwd(x, backward["branch"]), scale_bwd(x, backward["skip"])


def residual_add(branch: Array, skip: Array, tau: float = 1.0) -> Array:
    """Add a branch to its skip, weighed so that a unit scale stays."""
    weights = extents.residual(tau=tau).backward
    return scale_fwd(branch, weights["branch"]) + scale_fwd(skip, weights["skip"])


def residual_apply(
    function: Callable[[Array], Array], x: Array, tau: float = 1.0
) -> Array:
    """Return ``x`` plus ``tau`` times the function of it, at unit scale."""
    branch, skip = residual_split(x, tau)
    return residual_add(function(branch), skip, tau)
