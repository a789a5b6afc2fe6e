"""Gradients of a torch module, as it scales them and as they truly are."""

from collections.abc import Mapping
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.watching import output_gradients, unchanged
from amprewrite.unit_scaling.torch.scale import true_gradients
from amprewrite.unit_scaling.validity import STRETCH, Gradients, Pulled


def pull(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Pulled:
    """Return the gradients of all parameters that are trained.

    Buffers, gradients and the state of random numbers stay as they are. What
    ``torch.compile`` made of the model runs uncompiled: its factors are constants.

    Raises:
        ArgumentError: No output is a float tensor that needs a gradient.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with unchanged(model):
        (scaled,) = _gradients(model, parameters, (args, kwargs), (1.0,))
    with unchanged(model), true_gradients():
        true, again = _gradients(model, parameters, (args, kwargs), (1.0, STRETCH))
    return Pulled(scaled, true, again)


def _gradients(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    sizes: tuple[float, ...],
) -> list[Gradients]:
    """Return the gradients for output gradients of each size."""
    outputs, drawn = output_gradients(model, model(*call[0], **call[1]))
    found: list[Gradients] = []
    for size in sizes:
        gradients = torch.autograd.grad(
            outputs,
            list(parameters.values()),
            [y * size for y in drawn],
            retain_graph=True,
            materialize_grads=True,
        )
        pairs = zip(parameters, gradients, strict=True)
        found.append({name: g.detach().double().cpu().numpy() for name, g in pairs})
    return found
