"""Compiled functions with weights as constants, compiled again when one changes.

Inductor folds and packs weights that it may take for constants. It looks at them once,
so that a frozen function is right for as long as nobody writes to a weight. Before each
call the weights are compared with those that the function was compiled for.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Marks, layouts
from amprewrite.frameworks.torch_fx.compat.tensor_internals import counts_writes

MOST_FREEZES = 3
"""Number of times that a function is frozen.

A model is converted, and its weights are loaded once or twice. Whoever writes to them
more often would wait for the compiler each time: then they are inputs of the function.
"""


class Frozen:
    """A function with constant weights; of changed weights it makes another.

    Attributes:
        freezes: Number of times that it was made.
    """

    def __init__(
        self, make: Callable[[], Callable[..., Any]], unfrozen: Callable[..., Any]
    ) -> None:
        """Make nothing yet.

        Args:
            make: Returns the function, which takes the weights of now as constants.
            unfrozen: The function that reads its weights at each call.
        """
        self.freezes = 0
        self._make, self._unfrozen = make, unfrozen
        self._run: Callable[..., Any] | None = None
        self._weights, self._written = Marks(()), tuple[torch.Tensor, ...]()
        self._layouts: list[list[Any]] = []

    def of(
        self, weights: Sequence[torch.Tensor], written: Sequence[torch.Tensor] = ()
    ) -> Callable[..., Any]:
        """Return the function to call with these weights.

        Args:
            weights: The weights that the function reads, and does not write to. Of
                writes that torch does not count (through ``weight.data``), those to
                all of a weight are seen; see :class:`Marks`.
            written: The tensors that it writes to: others, or those in another layout,
                have another function.
        """
        same = all(map(is_, self._written, written))
        same = same and layouts(written) == self._layouts
        if self._run is not None and same and self._weights.hold(weights):
            return self._run
        # On other devices than a CPU, a look at values would wait for the device.
        seen = all(w.device.type == "cpu" and counts_writes(w) for w in weights)
        if self.freezes >= MOST_FREEZES or not seen:
            self._run = None
            return self._unfrozen
        self.freezes += 1
        self._weights, self._written = Marks(weights), tuple(written)
        self._layouts = layouts(written)
        self._run = self._make()
        return self._run


# Write activations that stop at a bound so that frozen code keeps NaN in them.
#
# Inductor does them in the kernel of the linear layer or convolution before them, by
# patterns of ops (torch/_inductor/fx_passes/mkldnn_fusion.py). oneDNN computes them by
# minima and maxima of the processor, which are the bound if the other operand is NaN:
# it was 0 after each ``relu`` (torch 2.13, AVX2). Written by other ops of the same
# value they fit no pattern. ResNet-50 and VGG-16 took as long without those fusions
# (measured).

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
