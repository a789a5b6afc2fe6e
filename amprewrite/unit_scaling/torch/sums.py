"""Scaled sums and residual branches."""

from collections.abc import Callable

from torch import Tensor

from amprewrite.unit_scaling.rules import constrained, extents, shapes
from amprewrite.unit_scaling.torch._compat import broadcast_shapes
from amprewrite.unit_scaling.torch.scale import scale_bwd, scale_fwd

Constraint = str | None


def add(
    left: Tensor, right: Tensor, constraint: Constraint = "to_output_scale"
) -> Tensor:
    """Add tensors of unit scale; the gradient of a broadcast one sums its copies."""
    result = broadcast_shapes(left.shape, right.shape)
    found = shapes.of_add(left.shape, right.shape, result)
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(left + right, factors.forward)


def residual_split(x: Tensor, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return ``x`` for the branch and for the skip, with their gradients weighed.

    Args:
        x: Where both paths start.
        tau: Weight of the branch; that of the skip is 1.
    """
    backward = extents.residual(tau=tau).backward
    return scale_bwd(x, backward["branch"]), scale_bwd(x, backward["skip"])


def residual_add(branch: Tensor, skip: Tensor, tau: float = 1.0) -> Tensor:
    """Add a branch to its skip, weighed so that a unit scale stays."""
    weights = extents.residual(tau=tau).backward
    return scale_fwd(branch, weights["branch"]) + scale_fwd(skip, weights["skip"])


def residual_apply(
    function: Callable[[Tensor], Tensor], x: Tensor, tau: float = 1.0
) -> Tensor:
    """Return ``x`` plus ``tau`` times the function of it, at unit scale."""
    branch, skip = residual_split(x, tau)
    return residual_add(function(branch), skip, tau)
