"""Run a model of either framework, and return the scales of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.unit_scaling.tracking.tracks import Tracks
from amprewrite.unit_scaling.validity import load_for


def track_scales(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Tracks:
    """Run a model forward and backward, and return the scales of every float tensor.

    Every float output gets a gradient of unit Gaussian numbers. Where some are scalars
    they are losses: they get 1, and other outputs 0.
    Parameters, buffers and the state of random numbers stay as they are. In torch each
    call of a function is a tensor, views left out; in JAX each equation of the program,
    with functions under ``jit``, loops and branches as one.

    Args:
        model: A ``torch.nn.Module``, or a function of JAX whose first argument holds
            the parameters, or a JAX module that is a pytree of its own.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        ArgumentError: ``model`` is no such model, or has no float output.
    """
    run = load_for(model, "tracking").track
    return Tracks(tuple(run(model, tuple(args), dict(kwargs or {}))))
