"""Read tensors as float64, whole or block by block, for ``verify`` to compare."""

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


class TensorValues:
    """Values of a float tensor, valid until it is written; complex ones are pairs.

    Args:
        tensor: The tensor; on the host it is not copied, if it is contiguous.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Bring the values to the host."""
        held = tensor.detach()
        if held.is_complex():
            held = torch.view_as_real(held.resolve_conj())
        self.shape: tuple[int, ...] = tuple(held.shape)
        self.size = held.numel()
        self._flat = held.cpu().reshape(-1)

    def block(self, start: int, stop: int) -> Array:
        """Return elements in row-major order, in float64."""
        return np.asarray(self._flat[start:stop].to(torch.float64).numpy())

    def exceeds(self, limit: float) -> bool:
        """Return whether a magnitude is above ``limit``, or is no number."""
        if not self.size:
            return False
        least, largest = torch.aminmax(self._flat)
        return not -limit <= float(least) <= float(largest) <= limit

    def __array__(
        self,
        dtype: Any = None,
        copy: object = None,  # NumPy's protocol; it is one always
    ) -> Any:
        """Return a copy in float64."""
        return to_array(self._flat.reshape(self.shape)).astype(dtype or np.float64)


def floats(value: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors in a value."""
    return [
        leaf
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
    ]
