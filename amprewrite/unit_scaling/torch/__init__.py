"""Unit scaling in torch: the primitives ``scale_fwd`` and ``scale_bwd``."""

from amprewrite.unit_scaling.torch.scale import scale, scale_bwd, scale_fwd

__all__ = ["scale", "scale_bwd", "scale_fwd"]
