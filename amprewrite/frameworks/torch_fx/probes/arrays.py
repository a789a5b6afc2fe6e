"""Read tensors as float64, whole or block by block, for ``verify`` to compare."""

from collections.abc import Hashable, Sequence
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


def real(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers; a complex one as pairs."""
    if not output.is_complex():
        return output
    return torch.view_as_real(output.resolve_conj())


def floats(value: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors in a value."""
    return [
        leaf
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
    ]


def views_of(
    made: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
) -> list[Hashable] | None:
    """Return the element of an operand that each element of a result is.

    Two ops of which these are equal, and not None, move the same elements and compute
    nothing.

    Args:
        made: The float results of an op.
        operands: Its float operands.

    Returns:
        For each result the operand whose memory it reads, and how; None if there is no
        result, or one has its own memory.
    """
    found: list[Hashable] = []
    for result in made:
        place = next((i for i, x in enumerate(operands) if _shares(result, x)), None)
        if place is None:
            return None
        found.append((place, _layout(operands[place]), _layout(result)))
    return found or None


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or {one.layout, other.layout} != {torch.strided}:
        return False
    memory = one.untyped_storage().data_ptr()
    return memory != 0 and memory == other.untyped_storage().data_ptr()


def _layout(tensor: torch.Tensor) -> Hashable:
    flags = tensor.is_conj(), tensor.is_neg()
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), flags
