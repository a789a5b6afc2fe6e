"""The result of an emulated product alone, without a run of its kernel.

The kernel has run in the converted program. There it is compared with the original's op
on the operands that it had; where it is right, its result on other operands is the
original's in float32, rounded once.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.probes.emulation.products import (
    is_emulated_product,
    rounds_once,
)
from amprewrite.frameworks.torch_fx.probes.kernel_rounding import SAMPLES
from amprewrite.frameworks.torch_fx.probes.operand_dtypes import fits_float32


def is_known(canonical: str, exact: object, read: object) -> bool:
    """Return whether the kernel of a product is emulated, and rounds its sum once.

    Args:
        canonical: Canonical name of the op.
        exact: Operands of the original's op, with tensors at any depth.
        read: The same operands in the converted program.
    """
    if canonical not in SAMPLES or not is_emulated_product(read):
        return False
    tensors = (x for x in pytree.tree_leaves(read) if isinstance(x, torch.Tensor))
    dtypes = {tensor.dtype for tensor in tensors}
    if not fits_float32(exact, read) or len(dtypes) != 1:
        return False
    return rounds_once(canonical, *dtypes)


def rounded_alone(
    actual: Sequence[torch.Tensor],
    checked: Sequence[torch.Tensor] | None,
    same: Sequence[torch.Tensor] | None,
) -> list[torch.Tensor] | None:
    """Return the results of a converted product alone.

    Args:
        actual: Its results in the converted program.
        checked: The original's in float32, on the same operands.
        same: The original's in float32, on the operands of the product alone.

    Returns:
        None if it has to be run: in the program it was off by more than a rounding, or
        there is nothing to compare.
    """
    if checked is None or same is None or not len(actual) == len(checked) == len(same):
        return None
    if not all(map(_is_rounded, actual, checked)):
        return None
    return [one.to(found.dtype) for one, found in zip(same, actual, strict=True)]


def _is_rounded(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether a result is within a unit roundoff, in the Euclidean norm."""
    if found.shape != exact.shape or found.dtype.itemsize != 2:  # noqa: PLR2004  # bytes
        return False
    linalg: Any = torch.linalg
    unit = torch.finfo(found.dtype).eps / 2
    size = float(linalg.vector_norm(exact))
    return float(linalg.vector_norm(found - exact)) <= unit * size < inf
