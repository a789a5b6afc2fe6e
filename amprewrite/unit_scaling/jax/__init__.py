"""Unit scaling in JAX: ``scale_fwd`` and ``scale_bwd``, and weights of unit scale."""

from amprewrite.unit_scaling.jax.scale import scale, scale_bwd, scale_fwd
from amprewrite.unit_scaling.jax.weights import unit_init

__all__ = ["scale", "scale_bwd", "scale_fwd", "unit_init"]
