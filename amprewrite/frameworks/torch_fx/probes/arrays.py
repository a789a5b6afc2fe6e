"""Convert tensors to float64 arrays, the form that ``verify`` compares."""

from typing import Any

import numpy as np
import torch

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.measure.runs import Array


def to_array(tensor: torch.Tensor) -> Array:
    """Return a float tensor as f64; a complex one as pairs in a new last dimension."""
    held = tensor.detach()
    if held.is_complex():
        held = torch.view_as_real(held.resolve_conj())
    # A copy: the program may write to the tensor later.
    wide = held.to(device="cpu", dtype=torch.float64, copy=True)
    return np.asarray(wide.numpy())


def floats(value: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors in a value."""
    return [
        leaf
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
    ]
