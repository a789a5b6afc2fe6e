"""Gradients, buffers and the closure of an optimizer's step."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from amprewrite.errors import OptimizerError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat.tensor_internals import writes
from amprewrite.training.torch import _compat

# The gradients of an optimizer: grouping, finiteness, and parameter names.


def parameters(optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and tensor of each parameter of an optimizer."""
    for number, group in enumerate(_compat.groups(optimizer)):
        names = group.get("param_names", ())
        for index, parameter in enumerate(group["params"]):
            name = f"parameter {index} of group {number}"
            yield (names[index] if names else name), parameter


def by_kind(optimizer: Optimizer, *, half: bool = False) -> list[list[torch.Tensor]]:
    """Return the gradients' values, grouped by device, dtype and placement.

    For gradients distributed over processes (DTensor), torch takes the placement of the
    first in a list and reports an infinity to all those processes. Lists of local
    tensors come first, so that their infinities are reported too.

    A sparse gradient is coalesced, since the sum of its entries may not be finite.

    Args:
        optimizer: The optimizer.
        half: Whether float16 gradients are allowed, because they are only checked.

    Raises:
        ValueError: A gradient is float16: its parameter should be float32.
    """
    found: dict[tuple[Any, ...], list[torch.Tensor]] = defaultdict(list)
    for name, parameter in parameters(optimizer):
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        held = parameter.grad
        values = held.values() if held.is_sparse else held
        if values.dtype == torch.float16 and not half:
            msg = (
                f"the gradient of {name} is float16: small ones are lost when they are "
                f"unscaled; want float32 parameters, which a model converted with "
                f"training=True keeps (Attempting to unscale FP16 gradients.)"
            )
            raise ValueError(msg)
        spread = _compat.placement(values)
        found[spread, values.device, values.dtype].append(values)
    return [found[key] for key in sorted(found, key=lambda key: key[0] is not None)]


def first_not_finite(optimizer: Optimizer, model: nn.Module | None) -> str:
    """Return the name of the first parameter with a gradient that is not finite.

    Empty if there is none. The names are the model's, if there is one. All processes
    that have a part of a gradient must call it, and get the same result.
    """
    names = _names(model)
    for name, parameter in parameters(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        if not bool(_compat.whole(torch.isfinite(values).all())):
            return names.get(id(parameter), name)
    return ""


def check_owner(optimizer: Optimizer, model: nn.Module) -> None:
    """Check that an optimizer holds parameters of ``model`` alone.

    Raises:
        OptimizerError: One belongs to another model; the loss's gradients miss it.
    """
    names = _names(model)
    for name, parameter in parameters(optimizer):
        if id(parameter) not in names:
            msg = (
                f"{type(optimizer).__name__} holds {name}, of shape "
                f"{tuple(parameter.shape)}, which is no parameter of the "
                f"{type(model).__name__} given as model=; a step would not train it: "
                f"make the optimizer of model.parameters() after converting with "
                f"training=True, or leave model= out"
            )
            raise OptimizerError(msg)


def _names(model: nn.Module | None) -> dict[int, str]:
    return {} if model is None else {id(p): n for n, p in model.named_parameters()}


# Copies of a model's buffers, restored when a step is skipped.


class Buffers:
    """The values of a model's buffers before the first forward pass of a step.

    Running statistics and counters change in the forward pass, before it is known
    whether the step is finite. Buffers that the first step (for which the host waits)
    and later writes leave unchanged, such as tables and masks, are not copied. (Batch
    norms change their statistics without counting it as a write, so that counting
    writes is not enough.) A forward pass traced by torch.compile has the copies of all
    buffers in its program: writes cannot be counted there.
    """

    def __init__(self, model: nn.Module) -> None:
        """Register a hook that copies the buffers of ``model`` in train mode."""
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._fixed: dict[int, int] = {}  # by identity: writes when it was looked at
        self._looked = False
        model.register_forward_pre_hook(self._keep)

    def _keep(self, model: nn.Module, args: Any) -> None:
        del args
        if self._kept is None and model.training:
            self._kept = [
                (buffer, buffer.detach().clone())
                for buffer in model.buffers()
                if torch.compiler.is_compiling()
                or self._fixed.get(id(buffer)) != writes(buffer)
            ]

    def settle(self, skipped: torch.Tensor) -> None:
        """End a step; restore the buffers if it was skipped.

        Args:
            skipped: Boolean scalar, on any device; the host does not wait for it.
        """
        with torch.no_grad():
            for buffer, copy in self._kept or ():
                if not self._looked and torch.equal(buffer, copy):
                    self._fixed[id(buffer)] = writes(buffer)
                else:
                    put_back = skipped.to(buffer.device, non_blocking=True)
                    buffer.copy_(torch.where(put_back, copy, buffer))
        self._looked = self._looked or self._kept is not None
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without tensors."""
        return {"_kept": None, "_fixed": dict[int, int](), "_looked": False}


# The closure of a step.


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
