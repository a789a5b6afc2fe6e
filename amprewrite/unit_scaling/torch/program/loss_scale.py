"""Warn once if a unit-scaled model is trained with a loss scale."""

from typing import Any

import torch

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.tensor_internals import is_readable

LARGEST = 64.0
"""Gradient of a loss above which it counts as scaled; scales begin at 128 as a rule."""


class LossScaleWatch:
    """Checks the first gradient that reaches a loss of a unit-scaled model.

    Attributes:
        done: Whether one was checked.
    """

    done: bool = False

    def __call__(self, output: Any) -> Any:
        """Return the output of a call, with a hook on each scalar."""
        if self.done or torch.compiler.is_compiling():
            return output
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.dim():
                hooked: Any = leaf  # torch does not say what a hook takes
                hooked.register_hook(self._look)
        return output

    def _look(self, gradient: torch.Tensor) -> None:
        """Warn if the gradient of a loss is large."""
        if not is_readable(gradient):
            return
        size = abs(float(gradient))
        if not self.done and size > LARGEST:
            warn(
                f"training a unit-scaled model with a loss scale: the gradient of the "
                f"loss is {size:g}; gradients have a scale near 1 without it, and "
                "overflow 16 and 8 bits with it; want a loss scale of 1"
            )
        self.done = True
