"""Write activations that stop at a bound so that frozen code keeps NaN in them.

Inductor does them in the kernel of the linear layer or convolution before them, by
patterns of ops (torch/_inductor/fx_passes/mkldnn_fusion.py). oneDNN computes them by
minima and maxima of the processor, which are the bound if the other operand is NaN: it
was 0 after each ``relu`` (torch 2.13, AVX2). Written by other ops of the same value
they fit no pattern. ResNet-50 and VGG-16 took as long without those fusions (measured).
"""

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def keep_nan(graph: Graph) -> None:
    """Write ``relu`` as ``clamp_min``, and clamp from above before from below.

    Args:
        graph: ATen ops of a program for inference, which inductor has decomposed; it is
            changed in place.
    """
    for node in list(graph.nodes):
        if node.target is aten.relu.default:
            node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
        elif node.target is aten.clamp_max.default and _is_alone(node.args[0]):
            _swap(node.args[0], node)


def _is_alone(low: Any) -> bool:
    """Return whether ``low`` clamps from below for one reader, as its operand is read.

    The operand of ``hardswish`` has another: its fusion keeps NaN, and stays.
    """
    if low.target is not aten.clamp_min.default or len(low.users) > 1:
        return False
    given = low.args[0]
    shifted = given.args[0] if given.target is aten.add.Tensor else given
    return len(given.users) == 1 == len(shifted.users)


def _swap(low: Node, high: Node) -> None:
    """Clamp from above first, if the bounds ascend: then the values are the same."""
    first, *lower = low.args
    _, *upper = high.args
    if not _ascend(lower, upper):
        return
    low.target, high.target = high.target, low.target
    low.args, high.args = (first, *upper), (low, *lower)


def _ascend(lower: list[Any], upper: list[Any]) -> bool:
    """Return whether two clamps have a number each, the first not above the second."""
    match lower, upper:
        case [int() | float() as least], [int() | float() as most]:
            return least <= most
        case _:
            return False
