"""Try a kernel of packed weights, beside the plain one, before a program uses it."""

import math
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedLayer
from amprewrite.frameworks.torch_fx.lowering.packing.packed_weight import is_padded

PADDED = "its blocks would take {:,} bytes in place of {:,}"
DIFFERS = "its result differs by {:.2g} from that of the plain kernel"
LOST = "its result is a number where that of the plain kernel is NaN"

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
"""Results by layout, shape, dtype and epilogue."""


def tried(layer: PackedLayer, weight: torch.Size, dtype: torch.dtype) -> Tried:
    """Return whether a layer can run with a packed weight.

    It is tried once for each layout, shape, dtype and epilogue: on a small operand, and
    a weight of small fractions that are exact in each dtype.

    Args:
        layer: The layer.
        weight: Shape of its plain weight.
        dtype: Dtype of all operands.
    """
    operand = None if layer.layout.is_for_all else layer.shape
    key = (layer.layout, weight, operand, dtype, layer.epilogue)
    if key not in _known:
        _known[key] = _try(layer, weight, dtype)
    return _known[key]


def _try(layer: PackedLayer, shape: torch.Size, dtype: torch.dtype) -> Tried:
    layout = layer.layout
    given, outputs = layout.example(shape), layout.outputs(shape)
    with torch.inference_mode(mode=False), torch.no_grad():
        weight, x = _fractions(shape, 13, dtype), _fractions(given, 7, dtype)
        bias = _fractions([outputs], 5, dtype)
        sums = layout.plain_layer(x, weight, bias)
        rest = [_fractions(sums.shape, 3, dtype)] if layer.epilogue.sums else []
        run = layout.kernel(layer.epilogue)
        try:
            found = run(x, layout.packed(weight, given), bias, *rest)
            packed = layout.packed(weight, layer.shape)  # perhaps in other blocks
            size = kernels.size(packed)
        except (RuntimeError, NotImplementedError) as error:
            return Tried(str(error).strip().split("\n")[0])
        if is_padded(packed, weight):
            return Tried(PADDED.format(size, weight.nbytes))
        wanted = sums if layer.after is None else layer.after(sums, *rest)
        # Products of fractions of 1/64: sums in float32 err by as many units at most.
        rounding = torch.finfo(dtype).eps * (sums.abs() + wanted.abs()).double()
        sizes = layout.plain_layer(x.float().abs(), weight.float().abs(), None)
        order = torch.finfo(torch.float32).eps * weight.numel() / outputs * sizes
        error = (found.double() - wanted.double()).abs()
        excess = error - _SLACK * (rounding + order.double())
        worst = excess.argmax()
        differs = not excess.flatten()[worst] <= 0
        nothing = torch.full_like(x, math.nan)
        kept = run(nothing, layout.packed(weight, given), bias, *rest).isnan()
        if (layout.plain_layer(nothing, weight, bias).isnan() & ~kept).any():
            return Tried(LOST)
    return Tried(DIFFERS.format(error.max()) if differs else "", size - weight.nbytes)


def _fractions(shape: Sequence[int], period: int, dtype: torch.dtype) -> torch.Tensor:
    """Return multiples of 1/64 around zero, with that period."""
    count = prod(shape)
    numbers = torch.arange(period).sub(period // 2).div(64).to(dtype)
    return numbers.repeat(count // period + 1)[:count].view(*shape)
