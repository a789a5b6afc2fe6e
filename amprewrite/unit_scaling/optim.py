"""Optimizers of torch with the learning rates of u-muP, and typed parameters."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self, cast

import torch
from torch import nn

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.learning_rates import (
    MupType,
    Optimizer,
    check_type,
    learning_rate_multiplier,
)

# Parameters of torch with a type of u-muP, which copies and pickles keep.


class Parameter(nn.Parameter):
    """A parameter that knows its type, by which its learning rate is scaled.

    Args:
        data: Its values.
        mup_type: ``weight``, ``bias``, ``norm`` or ``output``.
        depth: Number of layers of the stack that it is in; None outside of stacks.
        requires_grad: Whether it is trained.

    Raises:
        UnitScalingError: The type is unknown.
    """

    mup_type: MupType
    depth: int | None

    def __new__(
        cls,
        data: torch.Tensor,
        mup_type: MupType,
        depth: int | None = None,  # noqa: ARG004  # __init__ takes it
        *,
        requires_grad: bool = True,
    ) -> Self:
        """Return the parameter; it shares the memory of ``data``."""
        check_type(mup_type)
        base: Any = super()
        return base.__new__(cls, data, requires_grad)

    def __init__(
        self,
        data: torch.Tensor,  # noqa: ARG002  # __new__ takes it
        mup_type: MupType,
        depth: int | None = None,
        *,
        requires_grad: bool = True,  # noqa: ARG002  # __new__ takes it
    ) -> None:
        """Store type and depth."""
        self.mup_type, self.depth = mup_type, depth

    def __deepcopy__(self, memo: dict[int, Any]) -> "Parameter":
        """Return a copy with the type."""
        if id(self) not in memo:
            values = self.detach().clone(memory_format=torch.preserve_format)
            memo[id(self)] = _rebuilt(values, self)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return how a pickle makes it again, with the type."""
        how = self.mup_type, self.depth, self.requires_grad
        return _unpickled, (self.detach(), *how)


def _rebuilt(values: torch.Tensor, like: Parameter) -> Parameter:
    how = like.mup_type, like.depth
    return Parameter(values, *how, requires_grad=like.requires_grad)


def _unpickled(
    values: torch.Tensor, mup_type: MupType, depth: int | None, needs: Any
) -> Parameter:
    return Parameter(values, mup_type, depth, requires_grad=needs)


def assign_types(
    model: nn.Module,
    types: Mapping[str, MupType],
    *,
    depths: Mapping[str, int] | None = None,
    default: MupType | None = None,
) -> None:
    """Give each parameter of a model its type, in place.

    Parameters are replaced by :class:`Parameter` with the same memory; those shared by
    several modules stay shared. Make the optimizer after it.

    Args:
        model: The model.
        types: Type by glob over parameter names; the first that matches counts.
        depths: Number of layers by glob, for parameters inside of stacks.
        default: Type of parameters that no glob matches; None to refuse them.

    Raises:
        UnitScalingError: A parameter has no type, or a glob matches none.
    """
    made: dict[int, Parameter] = {}
    used: set[str] = set()
    untyped: Any = model
    for path, part in untyped.named_modules():
        for name, held in list(part.named_parameters(recurse=False)):
            full = f"{path}.{name}" if path else name
            kind, depth = _first(types, full, used), _first(depths or {}, full, used)
            kind = kind or default
            if kind is None:
                msg = (
                    f"{type(model).__name__}.{full} has no mup_type; want a glob of "
                    f"types= that matches it, or default='weight'"
                )
                raise UnitScalingError(msg)
            if id(held) not in made:
                made[id(held)] = Parameter(
                    held.detach(), kind, depth, requires_grad=held.requires_grad
                )
            part.register_parameter(name, made[id(held)])
    for glob in (*types, *(depths or {})):
        if glob not in used:
            msg = f"{glob!r} matches no parameter of {type(model).__name__}"
            raise UnitScalingError(msg)


def _first(table: Mapping[str, Any], name: str, used: set[str]) -> Any:
    for glob, found in table.items():
        if fnmatchcase(name, glob):
            used.add(glob)
            return found
    return None


# Optimizers of torch with the learning rates of u-muP.

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


__all__ = ["SGD", "Adam", "AdamW", "Parameter", "assign_types", "parameter_groups"]
