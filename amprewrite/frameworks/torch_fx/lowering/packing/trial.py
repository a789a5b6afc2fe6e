"""Try a kernel of packed weights, beside the plain one, before a program uses it."""

from typing import NamedTuple

import torch

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.packed_linear import PackedLinear

PADDED = "its blocks would take {:,} bytes in place of {:,}"
DIFFERS = "its result differs by {:.2g} from that of the plain kernel"

MOST_PADDING = 1 / 16
"""Largest part by which the blocks of a weight may be larger than the weight.

A matrix that is no whole number of blocks is padded: 0.1 % of the 50,257 rows of GPT-2,
twice the bytes of one of 65 by 33.
"""

_SLACK = 4.0
"""Factor of the rounding error of results that two kernels may differ by.

Each rounds its sum, and perhaps the result of the activation; the derivatives of
activations are below 1.2.
"""


class Tried(NamedTuple):
    """Result of a trial.

    Attributes:
        why: The reason why a layer cannot run with a packed weight; empty if it can.
        padding: Bytes that fill the blocks of the weight.
    """

    why: str
    padding: int = 0


_known: dict[object, Tried] = {}
"""Results by shape, dtype and epilogue."""


def tried(layer: PackedLinear, shape: torch.Size, dtype: torch.dtype) -> Tried:
    """Return whether a layer can run with a packed weight.

    It is tried once for each shape, dtype and epilogue: on one row, and a weight of
    small fractions that are exact in each dtype.

    Args:
        layer: The layer.
        shape: Shape of the matrix of outputs by inputs.
        dtype: Dtype of all operands.
    """
    key = (shape, dtype, layer.epilogue)
    if key not in _known:
        _known[key] = _try(layer, shape, dtype)
    return _known[key]


def _try(layer: PackedLinear, shape: torch.Size, dtype: torch.dtype) -> Tried:
    outputs, inputs = shape
    with torch.inference_mode(mode=False), torch.no_grad():
        weight = _fractions(outputs * inputs, 13, dtype).view(outputs, inputs)
        x, bias = _fractions(inputs, 7, dtype)[None], _fractions(outputs, 5, dtype)
        rest = [_fractions(outputs, 3, dtype)[None]] if layer.epilogue.sums else []
        run = kernels.kernel(layer.epilogue)
        try:
            matrix = kernels.packed(weight, layer.rows)
            found = run(x, matrix, bias, *rest)
            size = kernels.size(matrix)
        except (RuntimeError, NotImplementedError) as error:
            return Tried(str(error).strip().split("\n")[0])
        if size > weight.nbytes * (1 + MOST_PADDING):
            return Tried(PADDED.format(size, weight.nbytes))
        sums = torch.nn.functional.linear(x, weight, bias)
        wanted = sums if layer.after is None else layer.after(sums, *rest)
        # Products of fractions of 1/64: sums in float32 err by as many units at most.
        rounding = torch.finfo(dtype).eps * (sums.abs() + wanted.abs()).double()
        order = torch.finfo(torch.float32).eps * inputs * (x.abs() @ weight.abs().t())
        error = (found.double() - wanted.double()).abs()
        excess = error - _SLACK * (rounding + order.double())
        worst = excess.argmax()
        differs = not excess.flatten()[worst] <= 0
    return Tried(DIFFERS.format(error.max()) if differs else "", size - weight.nbytes)


def _fractions(count: int, period: int, dtype: torch.dtype) -> torch.Tensor:
    """Return multiples of 1/64 around zero, with that period."""
    return torch.arange(count).remainder(period).sub(period // 2).div(64).to(dtype)
