"""Products of 8-bit matrices by ``torch._scaled_mm``: its layout, its multiples of 16.

Source of the limits: the checks of ``_scaled_mm_out_cuda`` (ATen, torch 2.13): the
first matrix row-major, the second column-major, the summed extent and the columns
multiples of 16, at most one of the two in e5m2, compute capability 8.9.
"""

import torch

from amprewrite.dtypes.rounding import quantise_by, scale_of
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat.operators import scaled_mm

MULTIPLE = 16
"""Bytes to which rows of matrices of 8 bits are aligned."""

CAPABILITY = (8, 9)
"""Least compute capability of CUDA devices with products of 8 bits."""


class Rounded:
    """A matrix in an 8-bit format, with the scale that it was multiplied by.

    Attributes:
        held: The numbers, row-major, of an 8-bit dtype.
        inverse: Factor by which they give the matrix, a float32 scalar.
    """

    def __init__(self, x: torch.Tensor, name: str, scaling: str) -> None:
        """Round a matrix.

        Args:
            x: A float matrix.
            name: The format, such as ``float8_e4m3fn``.
            scaling: ``none`` or ``current``.
        """
        wide = x.float()
        scales = scaling == "current" and 0 not in x.shape
        scale = scale_of(wide, name) if scales else wide.new_ones(())
        values = quantise_by(wide, name, (scale,)) * scale
        self.held = values.to(getattr(torch, name)).contiguous()
        self.inverse = scale.reciprocal()

    def transposed(self) -> "Rounded":
        """Return the transposed matrix, row-major too."""
        made = object.__new__(Rounded)
        made.held, made.inverse = self.held.t().contiguous(), self.inverse
        return made


def product(left: Rounded, right: Rounded) -> torch.Tensor:
    """Return the product of one matrix with the transposed other one, in float32.

    Extents are padded with zeros to those of the kernel, which changes no sum.

    Args:
        left: A matrix of m rows and k columns.
        right: A matrix of n rows and k columns.

    Returns:
        A float32 matrix of m rows and n columns.
    """
    rows, columns = left.held.shape[0], right.held.shape[0]
    if 0 in (*left.held.shape, columns):
        return left.inverse.new_zeros((rows, columns))
    one, two = _padded(left.held, rows=False), _padded(right.held, rows=True)
    made = scaled_mm(one, two.t(), left.inverse, right.inverse)
    return made[:, :columns]


def _padded(held: torch.Tensor, *, rows: bool) -> torch.Tensor:
    """Return ``held`` with zeros up to whole multiples of columns, and of rows."""
    below = -held.shape[0] % MULTIPLE if rows else 0
    beside = -held.shape[1] % MULTIPLE
    if not below and not beside:
        return held
    bits = torch.nn.functional.pad(held.view(torch.uint8), (0, beside, 0, below))
    return bits.view(held.dtype)


def has_products(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of 8 bits."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= CAPABILITY
    return device.type in ("cpu", "meta")


def check_device(device: torch.device) -> None:
    """Refuse a device without products of 8 bits.

    Raises:
        UnsupportedError: It has none.
    """
    if not has_products(device):
        msg = (
            f"kernel = 'scaled_mm' asks for products of 8 bits, and {device} has none; "
            "want a CUDA device of capability 8.9 or more, or kernel = 'auto' or "
            "'emulated' in [contract] of the policy"
        )
        raise UnsupportedError(msg)
