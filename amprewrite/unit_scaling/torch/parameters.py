"""Parameters of torch with a type of u-muP, which copies and pickles keep."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch import nn

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.learning_rates import MupType, check_type


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
