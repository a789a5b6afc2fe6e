"""State of one optimizer between two updates of the loss scale."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from amprewrite.errors import UnsupportedError
from amprewrite.training.torch import _compat


@dataclass
class StepState:
    """Actions on one optimizer since the last update of the scale.

    Attributes:
        optimizer: The optimizer.
        unscaled: Whether its gradients were divided by the scale.
        stepped: Whether its step was made or skipped.
        fused: Whether its own kernel decided to skip the step.
        found: On each device, 1 if a gradient is not finite, else 0.
    """

    optimizer: Optimizer
    unscaled: bool = False
    stepped: bool = False
    fused: bool = False
    found: dict[torch.device, torch.Tensor] = field(
        default_factory=dict[torch.device, torch.Tensor]
    )

    def need_gradients(self) -> None:
        """Check that the optimizer has gradients.

        Raises:
            RuntimeError: No parameter of the optimizer has one.
        """
        if not self.found:
            msg = (
                "step() of an optimizer without gradients: no parameter of it has one; "
                "call backward() before, on a loss of these parameters"
            )
            raise RuntimeError(msg)


def evaluated(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Callable[[], Any]]:
    """Return the result of a step's closure, if there is one, and the bare step.

    Raises:
        UnsupportedError: The optimizer calls its closure several times in a step.
    """
    kwargs = dict(kwargs)
    closure: Any = kwargs.pop("closure", None)
    if closure is None and args and callable(args[0]):
        closure, args = args[0], args[1:]
    step = partial(_compat.step(optimizer), *args, **kwargs)
    if closure is None:
        return None, step
    if isinstance(optimizer, LBFGS):
        msg = (
            "LBFGS calls its closure several times in a step, which cannot be skipped "
            "in between; train it without a loss scale, in bfloat16"
        )
        raise UnsupportedError(msg)
    with torch.enable_grad():
        return closure(), step
