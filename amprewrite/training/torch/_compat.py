"""Private or untyped names of torch; each has a test."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


def unscale(
    gradients: Sequence[torch.Tensor], inverse: torch.Tensor, found: torch.Tensor
) -> None:
    """Multiply ``gradients`` by ``inverse`` in place, and record if all are finite.

    One fused kernel for all of them; torch.amp.GradScaler uses it too.

    Args:
        gradients: Dense tensors of one device and dtype.
        inverse: Float32 scalar.
        found: Float32 scalar; becomes 1 if a gradient holds an infinity or NaN.
    """
    untyped: Any = torch
    untyped._amp_foreach_non_finite_check_and_unscale_(list(gradients), found, inverse)


def step(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the step of an optimizer."""
    untyped: Any = optimizer
    return untyped.step


def takes_scale(optimizer: Optimizer) -> bool:
    """Return whether a (fused) optimizer unscales and skips in its own kernel."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_with_scale(
    optimizer: Optimizer,
    scale: torch.Tensor | None,
    found: torch.Tensor,
    call: Callable[[], Any],
) -> Any:
    """Return the result of ``call``, run while ``optimizer`` has the loss scale.

    Args:
        optimizer: One that :func:`takes_scale`.
        scale: Float32 scalar; None if the gradients are unscaled already.
        found: Float32 scalar; not 0 to skip the step.
        call: Calls ``optimizer.step``.
    """
    fused: Any = optimizer
    own = getattr(optimizer, "grad_scale", None)  # of the user, to divide by as well
    fused.grad_scale = scale if own is None else own if scale is None else own * scale
    fused.found_inf = found
    try:
        return call()
    finally:
        del fused.grad_scale, fused.found_inf


def numbers(tensor: torch.Tensor) -> list[float]:
    """Return the elements of a vector."""
    untyped: Any = tensor
    return untyped.tolist()


def groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer."""
    return optimizer.param_groups


def placement(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return the mesh and placements of a DTensor; None for another tensor."""
    untyped: Any = tensor
    mesh = getattr(tensor, "device_mesh", None)
    return None if mesh is None else (mesh, untyped.placements)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a DTensor gathered from all processes, collectively; else itself."""
    untyped: Any = tensor
    return tensor if placement(tensor) is None else untyped.full_tensor()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a DTensor, to write into; another tensor itself.

    Gradients must be disabled: with them, the result is a copy.
    """
    untyped: Any = tensor
    return tensor if placement(tensor) is None else untyped.to_local()


def spread_as(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a local part as a DTensor distributed as ``like``; else itself."""
    if placement(like) is None:
        return values
    untyped: Any = like.data  # of a parameter, its DTensor
    make: Any = untyped.__class__.from_local
    return make(
        values,
        untyped.device_mesh,
        untyped.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def part(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the coordinates of this process's part of a DTensor.

    Replicas of a part have the same coordinates. Empty for another tensor.
    """
    untyped: Any = tensor
    if placement(tensor) is None:
        return ()
    where = zip(untyped.device_mesh.get_coordinate(), untyped.placements, strict=True)
    return tuple(index for index, kind in where if not kind.is_replicate())


HOOKS = "_optimizer_"
"""Beginning of the names under which an optimizer holds its hooks."""


def twin_of(optimizer: Optimizer, places: Mapping[int, torch.Tensor]) -> Optimizer:
    """Return a copy of an optimizer on other parameters, with its state, without hooks.

    Args:
        optimizer: The optimizer.
        places: The other parameters, by identity of those that they stand for.
    """
    kind = type(optimizer)
    twin: Any = kind.__new__(kind)
    own: dict[str, Any] = vars(optimizer)
    held = {
        name: value
        for name, value in own.items()
        # a scheduler sets a step of its own
        if name != "step" and not name.startswith(HOOKS)
    }
    twin.__dict__.update(copy.deepcopy(held, dict(places)))
    for name in own:
        if name.startswith(HOOKS):
            setattr(twin, name, OrderedDict())
    return twin


def bare_step(optimizer: Optimizer) -> None:
    """Take a step without the hooks of all optimizers."""
    hooked: Any = type(optimizer).step
    (hooked.__wrapped__ if getattr(hooked, "hooked", False) else hooked)(optimizer)
