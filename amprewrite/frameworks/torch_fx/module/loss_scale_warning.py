"""Warn once if a float16 model is trained without a loss scale.

A scaled loss is visible in the gradient that reaches the outputs of the model at the
first backward pass: whatever the means of scaling, its numbers are large. A unit-scaled
model needs none.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from amprewrite.errors import NotCapturedError, warn
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.compat.tensor_internals import is_readable
from amprewrite.plan.facts import is_unit_scaled

SMALLEST = 2.0**-14
"""The smallest normal float16; a gradient below it loses bits."""

SHARE = 0.01
"""Share of a gradient, by the sum of magnitudes, allowed below it: 1 %.

A mean cross entropy of 128 rows over 1000 classes has half of its gradient there;
scaled by 2**16, less than a thousandth.
"""

TOTAL = 8.0
"""Sum of the magnitudes of a gradient below which the loss counts as unscaled.

For a mean cross entropy it is at most 2, for a mean square twice the mean error; a loss
scale multiplies it, usually by 128 or more.
"""

_ADVICE = (
    "gradients below 6e-08 become zero in float16; scale the loss, with "
    "torch.amp.GradScaler or amprewrite.training.torch.GradScaler, or use bf16"
)


M = TypeVar("M", bound=nn.Module)


def watch_training(module: M, request: Request) -> M:
    """Return ``module``, watched where ``request`` asks for one to train in float16."""
    if request.low == "float16" and request.training is not False:
        watch(module)
    return module


def watch(module: nn.Module) -> None:
    """Check the first gradient that reaches the outputs of ``module``."""
    module.register_forward_hook(Watch())


class Watch:
    """A forward hook that is copied and pickled with its module.

    Attributes:
        done: Whether a gradient was checked; only the first one is.
    """

    done: bool = False

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Register a hook on each output that requires a gradient.

        A call that captured no graph ran in full precision, and is not watched.
        """
        del args
        if self.done or torch.compiler.is_compiling():
            return
        watched = [leaf for leaf in pytrees.pytree.tree_leaves(output) if _learns(leaf)]
        if not watched:
            return
        try:
            plan = getattr(module, "plan", None)
        except NotCapturedError:
            return
        if plan is not None and is_unit_scaled(plan):
            self.done = True
            return
        for leaf in watched:
            hooked: Any = leaf  # torch has no type for the arguments of a hook
            hooked.register_hook(self._look)

    def _look(self, gradient: torch.Tensor) -> None:
        if self.done or not gradient.is_floating_point() or not is_readable(gradient):
            return
        self.done = True
        if found := unscaled(gradient):
            msg = f"training in float16 without a loss scale: {found}; {_ADVICE}"
            warn(msg)


def _learns(leaf: Any) -> bool:
    """Return whether an output has values here, and requires a gradient."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and is_readable(leaf)


def unscaled(gradient: torch.Tensor) -> str:
    """Return the evidence in ``gradient`` that the loss is not scaled, if any.

    Args:
        gradient: Gradient of one output.
    """
    size = gradient.detach().abs().double()
    if not gradient.dim():
        value = float(size)
        return f"the gradient of the returned loss is {value:g}" if value <= 1 else ""
    total = float(size.sum())
    share = float(size[size < SMALLEST].sum()) / total if total else 0.0
    if share > SHARE:  # not of NaN and infinities: an overflow shows a scale
        below = f"in numbers below {SMALLEST:.0e}"
        return f"{share:.0%} of the gradient of an output is {below}"
    if 0 < total <= TOTAL:
        return f"the gradient of an output adds up to {total:.2g}, that of a mean loss"
    return ""
