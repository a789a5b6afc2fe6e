"""Time candidates of a model side by side: calls, or training steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.aten.names import named_tensors
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.probes.runner import Runner
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.measure.timing import raced

SECONDS = 2.0
"""Approximate limit of the timing of all candidates, beside five rounds of each."""


def seconds_of(
    models: Mapping[str, nn.Module], runner: Runner, *, training: bool
) -> dict[str, float]:
    """Return the median time of each model on the arguments of a runner.

    A training step is the forward pass and the gradients of all parameters for the sum
    of the float outputs. The models and the random state are restored afterwards.

    Args:
        models: The models, by name.
        runner: The arguments, and the devices that are waited for.
        training: Whether to time training steps.
    """
    runner = replace(runner, call=replace(runner.call, gradients=training))
    with undisturbed(*models.values(), watched=False) as before:
        runs = {name: _step(model, runner) for name, model in models.items()}
        with before.writes.watching(), torch.set_grad_enabled(training):
            for run in runs.values():
                run()  # what it writes to is known from then on, and none is watched

        def wait(_: object) -> None:
            for device in runner.devices:
                torch.cuda.synchronize(device)

        with torch.set_grad_enabled(training):
            return raced(runs, wait, SECONDS)


def _step(model: nn.Module, runner: Runner) -> Callable[[], object]:
    once = runner.arguments({})
    leaves = pytree.tree_leaves((runner.call.args, dict(runner.call.kwargs)))
    plain = (torch.Tensor, int, float, str, type(None))
    reused = all(isinstance(leaf, plain) for leaf in leaves)
    held = [p for p in model.parameters() if p.requires_grad]

    def step() -> object:
        # A cache among the arguments would grow from call to call.
        args, kwargs = once if reused else runner.arguments({})
        found = model(*args, **kwargs)
        if not (runner.call.gradients and held):
            return found
        floats = (t for t in dict(named_tensors(found)).values() if t.requires_grad)
        losses = [tensor.sum(dtype=torch.float32) for tensor in floats]
        if not losses:
            return found
        loss: Any = torch.stack(losses).sum()
        return torch.autograd.grad(loss, held, allow_unused=True)

    return step
