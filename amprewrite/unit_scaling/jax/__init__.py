"""Unit scaling in JAX: the primitives ``scale_fwd`` and ``scale_bwd``."""

from amprewrite.unit_scaling.jax.scale import scale, scale_bwd, scale_fwd

__all__ = ["scale", "scale_bwd", "scale_fwd"]
