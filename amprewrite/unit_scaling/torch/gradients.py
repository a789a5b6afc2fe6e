"""Gradients of a torch module, as it scales them and as they truly are."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.unit_scaling.torch.scale import true_gradients
from amprewrite.unit_scaling.validity import STRETCH, Gradients, Pulled

_compiler: Any = torch.compiler
_random: Any = torch.random
SEED = 1472


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


def output_gradients(
    model: torch.nn.Module, result: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the float tensors of a result, and a gradient for each.

    They are unit Gaussian numbers. Where some are scalars they are losses: they get 1,
    and other outputs 0.

    Raises:
        ArgumentError: There is none that needs a gradient.
    """
    leaves: list[Any] = pytree.tree_leaves(result)
    outputs = [y for y in leaves if isinstance(y, torch.Tensor) and y.requires_grad]
    if not outputs:
        msg = (
            f"{type(model).__name__} gives no float tensor that depends on a "
            "parameter; want an output, or a loss, to differentiate"
        )
        raise ArgumentError(msg)
    if not all(y.dim() for y in outputs):
        return outputs, [torch.full_like(y, not y.dim()) for y in outputs]
    return outputs, [torch.randn_like(y) for y in outputs]


@contextmanager
def unchanged(model: torch.nn.Module) -> Generator[None]:
    """Run uncompiled with seeded random numbers, and put buffers back."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with (
        _random.fork_rng(),
        torch.enable_grad(),
        _compiler.set_stance("force_eager"),
    ):
        torch.manual_seed(SEED)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
        yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
