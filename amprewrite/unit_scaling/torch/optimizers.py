"""Optimizers of torch with the learning rates of u-muP."""

from collections.abc import Iterable
from typing import Any, cast

import torch

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.learning_rates import (
    Optimizer,
    learning_rate_multiplier,
)

Given = Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | Iterable[Any]
"""Parameters, named parameters, or groups: tables with a key ``params``."""


def parameter_groups(
    params: Given,
    lr: float,
    optimizer: Optimizer = "adam",
    *,
    weight_decay: float = 0.0,
    independent_weight_decay: bool = True,
    readout_constraint: str | None = None,
) -> list[dict[str, Any]]:
    """Return a group for each learning rate, for any optimizer of torch.

    Args:
        params: As an optimizer takes them; each parameter has a ``mup_type``.
        lr: Learning rate of parameters with multiplier 1; that of a group of ``params``
            goes before it, as does its weight decay.
        optimizer: ``adam``, also for AdamW, or ``sgd``.
        weight_decay: Weight decay.
        independent_weight_decay: Whether each step takes the share ``weight_decay`` of
            a weight, whatever its learning rate: the decay of a group is divided by
            its learning rate, with which the optimizer multiplies.
        readout_constraint: Constraint of the model's ``linear_readout``, for SGD.

    Raises:
        UnitScalingError: A parameter has no ``mup_type``.
    """
    made: dict[tuple[int, float], dict[str, Any]] = {}
    for number, group in enumerate(_groups(params)):
        rest = {key: value for key, value in group.items() if key != "params"}
        for name, held in _named(group["params"], number):
            kind = getattr(held, "mup_type", None)
            if kind is None:
                msg = (
                    f"{name} has no mup_type; make it an "
                    f"amprewrite.unit_scaling.optim.Parameter, or give the types of "
                    f"the model by assign_types before the optimizer"
                )
                raise UnitScalingError(msg)
            rate = rest.get("lr", lr) * learning_rate_multiplier(
                kind,
                tuple(held.shape),
                optimizer,
                depth=getattr(held, "depth", None),
                readout_constraint=readout_constraint,
            )
            decay = rest.get("weight_decay", weight_decay)
            if independent_weight_decay and decay:
                decay = decay / rate
            key = (number, rate)
            fresh: dict[str, Any] = {
                **rest,
                "params": [],
                "lr": rate,
                "weight_decay": decay,
            }
            made.setdefault(key, fresh)["params"].append(held)
    return list(made.values())


def _groups(params: Given) -> list[dict[str, Any]]:
    given: list[Any] = list(params)
    if given and all(isinstance(item, dict) for item in given):
        return cast("list[dict[str, Any]]", given)
    return [{"params": given}]


def _named(params: Any, group: int) -> Iterable[tuple[str, Any]]:
    if isinstance(params, torch.Tensor):
        params = [params]
    for index, held in enumerate(params):
        if isinstance(held, tuple):
            yield cast("tuple[str, Any]", held)
        else:
            shape = tuple(held.shape)
            yield f"parameter {index} of group {group}, of shape {shape},", held


class Adam(torch.optim.Adam):
    """Adam with the learning rates of u-muP; see :func:`parameter_groups`.

    Its weight decay is added to the gradient, as in ``torch.optim.Adam``, and divided
    by no learning rate: Adam normalises it away.
    """

    def __init__(self, params: Given, lr: float = 1.0, **rest: Any) -> None:
        """Take the arguments of ``torch.optim.Adam``, but for ``decoupled``.

        Raises:
            UnitScalingError: A parameter has no ``mup_type``.
        """
        decay = rest.pop("weight_decay", 0.0)
        groups = parameter_groups(
            params, lr, weight_decay=decay, independent_weight_decay=False
        )
        super().__init__(groups, **rest)


class AdamW(torch.optim.AdamW):
    """AdamW with the learning rates of u-muP; see :func:`parameter_groups`."""

    def __init__(
        self,
        params: Given,
        lr: float = 1.0,
        *,
        weight_decay: float = 0.0,
        independent_weight_decay: bool = True,
        **rest: Any,
    ) -> None:
        """Take the arguments of ``torch.optim.AdamW``.

        Raises:
            UnitScalingError: A parameter has no ``mup_type``.
        """
        groups = parameter_groups(
            params,
            lr,
            weight_decay=weight_decay,
            independent_weight_decay=independent_weight_decay,
        )
        super().__init__(groups, **rest)


class SGD(torch.optim.SGD):
    """SGD with the learning rates of u-muP; see :func:`parameter_groups`."""

    def __init__(
        self,
        params: Given,
        lr: float = 1.0,
        *,
        weight_decay: float = 0.0,
        independent_weight_decay: bool = True,
        readout_constraint: str | None = None,
        **rest: Any,
    ) -> None:
        """Take the arguments of ``torch.optim.SGD``.

        Raises:
            UnitScalingError: A parameter has no ``mup_type``, or the constraint has no
                rule.
        """
        groups = parameter_groups(
            params,
            lr,
            "sgd",
            weight_decay=weight_decay,
            independent_weight_decay=independent_weight_decay,
            readout_constraint=readout_constraint,
        )
        super().__init__(groups, **rest)
