"""Scales of the tensors of a torch module: every call of a function is seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.watching import (
    Recorder,
    run_recorded,
    values_of,
)
from amprewrite.unit_scaling.torch.scale import OPERATOR
from amprewrite.unit_scaling.tracking import Scale, Tracked


@dataclass
class _Seen:
    """One tensor while the model runs; its gradient comes later."""

    name: str
    where: str
    value: torch.Tensor
    forward: Scale
    scaled: str | None
    backward: list[Scale] = field(default_factory=list[Scale])


def _scale(x: torch.Tensor) -> Scale:
    return Scale.of(values_of(x))


def track(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tracked]:
    """Return the scales of parameters, and of every tensor that a function makes.

    Raises:
        ArgumentError: No output is a float tensor that needs a gradient, or no
            parameter is trained.
    """
    made: list[_Seen] = []

    def note(
        name: str, where: str, x: torch.Tensor, func: Any, first: str | None
    ) -> None:
        scaled = first if func is OPERATOR else None
        found = _Seen(name, where, x, _scale(x), scaled)
        made.append(found)
        if x.requires_grad:

            def note_gradient(gradient: torch.Tensor) -> None:
                found.backward.append(_scale(gradient))

            hooked: Any = x
            hooked.register_hook(note_gradient)

    gradients = dict(run_recorded(model, args, kwargs, Recorder(note)))
    rows = [
        Tracked(
            name,
            "",
            tuple(p.shape),
            _scale(p),
            _scale(gradients[name]) if name in gradients else None,
            parameter=True,
        )
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    return rows + [
        Tracked(
            seen.name,
            seen.where,
            tuple(seen.value.shape),
            seen.forward,
            seen.backward[-1] if seen.backward else None,
            scaled=seen.scaled,
        )
        for seen in made
    ]
