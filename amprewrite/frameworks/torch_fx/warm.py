"""What happens around a capture: a first run that leaves no trace, and warnings."""

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from amprewrite.errors import AmpWarning, CaptureError
from amprewrite.frameworks.torch_fx import _compat
from amprewrite.frameworks.torch_fx.capture import offending_line
from amprewrite.plan import Plan


def announce(plan: Plan) -> None:
    """Warn of what a plan says the user should know."""
    for line in plan.warnings:
        warnings.warn(line, AmpWarning, stacklevel=2)


@contextmanager
def undisturbed(model: nn.Module) -> Generator[None]:
    """Leave the model's buffers and the random state as they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    named = [(part, dict(_compat.buffers(part))) for part in model.modules()]
    devices = sorted({t.device.index or 0 for t in model.parameters() if t.is_cuda})
    with _compat.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, held in before:
                    buffer.copy_(held)
            for part, buffers in named:
                _compat.buffers(part).update(buffers)


def warm_up(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Call the model once on copies of its arguments.

    transformers installs hooks under a lock at the first call, which dynamo cannot
    trace; and arguments with which the model itself fails are found here.

    Raises:
        CaptureError: The model fails on these arguments.
    """

    def copied(arg: Any) -> Any:
        return arg.detach().clone() if isinstance(arg, torch.Tensor) else arg

    args, kwargs = _compat.pytree.tree_map(copied, (args, dict(kwargs)))
    try:
        with undisturbed(model), torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        where = offending_line(error) or "its call"
        msg = (
            f"{type(model).__name__} itself fails on these arguments at {where}: "
            f"{str(error).strip()}; pass arguments that the model runs with"
        )
        raise CaptureError(msg) from error
