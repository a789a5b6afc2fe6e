"""Read tensors as float64 for ``verify``, and round them as an op reads them."""

from collections.abc import Callable, Hashable, Sequence
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


def paired(
    shape: tuple[Any, Any], other: tuple[Any, Any], join: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """Return arguments of the structure ``shape``, each leaf joined with the other's.

    A part of another structure in ``other`` is joined with itself.
    """

    def pair(one: Any, two: Any) -> Any:
        leaves, spec = pytree.tree_flatten(one)
        values = pytree.tree_leaves(two)
        if len(values) != len(leaves):
            values = leaves
        return pytree.tree_unflatten(list(map(join, leaves, values)), spec)

    (args, kwargs), (others, named) = shape, other
    spare = [None] * len(args)
    return (
        [pair(one, two) for one, two in zip(args, [*others, *spare], strict=False)],
        {key: pair(one, named.get(key)) for key, one in kwargs.items()},
    )


def rounded(read: Any, exact: Any) -> Any:
    """Return a copy of ``exact`` in the dtype and layout of ``read``.

    If the program clamped large numbers to the range of its dtype (a mask of -3.4e38 in
    float16), the copy is clamped too.
    """
    if not isinstance(read, torch.Tensor):
        return read
    usable = isinstance(exact, torch.Tensor) and exact.shape == read.shape
    if not usable or read.layout != torch.strided:
        return read.clone()
    limits = torch.finfo(read.dtype) if read.is_floating_point() else None
    made = torch.empty_like(read).copy_(exact)
    if limits and _is_cut(made, exact, limits.max) and bool(read.isfinite().all()):
        bounded = exact.clamp(limits.min, limits.max)
        made.copy_(torch.where(exact.isfinite(), bounded, exact))
    return made


def unrounded(exact: Any, read: Any) -> Any:
    """Return ``read`` in the dtype of ``exact``; values but tensors unchanged."""
    if not isinstance(exact, torch.Tensor):
        return exact
    if not isinstance(read, torch.Tensor) or read.shape != exact.shape:
        return exact.clone()
    return read.to(exact.dtype, copy=True)


def widened_again(exact: Any, read: Any, *, products: bool) -> tuple[Any, Any]:
    """Return rounded operands in the dtypes of the reference's.

    Args:
        exact: Positional and keyword operands of the original's op.
        read: The same operands, rounded.
        products: Whether it multiplies and sums, so that float32 is wide enough for
            operands in 16 bits.
    """
    narrow = products and fits_float32(exact, read)
    return paired(exact, read, in_float32 if narrow else unrounded)


def in_float32(exact: Any, read: Any) -> Any:
    """Return ``read`` as float32 if it is a float; others as :func:`unrounded`."""
    if isinstance(read, torch.Tensor) and read.is_floating_point():
        return read.to(torch.float32, copy=True)
    return unrounded(exact, read)


def fits_float32(exact: Any, read: Any) -> bool:
    """Return whether a product of 16-bit operands may be computed in float32.

    The products are exact there, and their sum has a thousandth of the error of a
    result in 16 bits, for which it is compared.

    Args:
        exact: Operands of the original's op, with tensors at any depth.
        read: The same operands, rounded.
    """
    leaves, rounded_to = pytree.tree_leaves(exact), pytree.tree_leaves(read)
    if len(leaves) != len(rounded_to) or torch.float64 in leaves:
        return False
    pairs = [
        (one, two)
        for one, two in zip(leaves, rounded_to, strict=True)
        if isinstance(one, torch.Tensor) and not _is_integral(one)
    ]
    return all(
        isinstance(two, torch.Tensor)
        and two.dtype in (torch.bfloat16, torch.float16)
        and two.shape == one.shape
        for one, two in pairs
    )


def _is_integral(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _is_cut(made: torch.Tensor, exact: torch.Tensor, limit: float) -> bool:
    """Return whether ``exact`` has numbers that are beyond the range of its copy."""
    if made.dtype.itemsize > 1:  # numbers beyond it became infinite
        return exact.dtype.itemsize > made.dtype.itemsize and not _is_finite(made)
    if exact.dtype.itemsize < 4 or not exact.numel():  # noqa: PLR2004  # bytes: no wider
        return False
    linalg: Any = torch.linalg
    return not bool(linalg.vector_norm(exact.flatten(), float("inf")) <= limit)


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())
