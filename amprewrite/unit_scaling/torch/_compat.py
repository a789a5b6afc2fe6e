"""Private or untyped names of torch; each has a test."""

from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat.operators import (
    Library,
    in_transform,
    register_vmap,
)

__all__ = ["Library", "broadcast_shapes", "in_transform", "register_vmap"]

_torch: Any = torch

broadcast_shapes: Any = _torch.broadcast_shapes
