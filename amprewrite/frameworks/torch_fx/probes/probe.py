"""The probe of a value: an identity that records the effect of rounding it."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.plan.sensitivity import EightBits, Key

Found = list[tuple[Key, torch.Tensor]]
"""Records of the probes in one backward pass: ``g . delta`` by key."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a value to the low dtype, or to 8 bits, and back.

    Attributes:
        low: The low dtype.
        saturated: Values with finite numbers that stay finite.
        kernels: Measured errors of values from kernels that round inside.
    """

    low: torch.dtype
    saturated: frozenset[str]
    kernels: dict[Key, torch.Tensor] = field(default_factory=dict[Key, torch.Tensor])

    def error(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        """Return the error of each element; 0 where ``value`` is not finite."""
        error = self.unchecked(value, key)
        finite = value.isfinite()
        return error if finite.all() else torch.where(finite, error, 0)

    def unchecked(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        """Return :meth:`error`, or NaN where ``value`` is not finite."""
        error = self.kernels.get(key)
        if error is not None:
            return error
        rounded = self._rounded(value, key)
        if rounded.dtype.itemsize == 1:  # torch does not widen 8 bits as it subtracts
            rounded = rounded.to(value.dtype)
        return torch.sub(rounded, value).to(value.dtype)

    def _rounded(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        if isinstance(key, EightBits):
            return quantise_scaled(value, key.format, key.scaling)
        saturates = (key if isinstance(key, str) else key[0]) in self.saturated
        return self.saturate(value) if saturates else value.to(self.low)

    def saturate(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` in the low dtype, clamped to its finite range."""
        limit = torch.finfo(self.low).max
        held = torch.where(value.isinf(), value, value.clamp(-limit, limit))
        return held.to(self.low)


class Probe(torch.autograd.Function):
    """Identity with a backward pass that records the effect of rounding its input.

    The token is a number that every probe reads, so that all are differentiated. A NaN
    gradient counts as zero: it arises where the infinite derivative of a root or a
    logarithm meets the zero of a ``where`` that drops its value.
    """

    @staticmethod
    def forward(  # autograd takes no keywords
        ctx: Any,
        value: torch.Tensor,
        token: torch.Tensor,  # noqa: ARG004  # makes the result need a gradient
        key: Key,
        rounding: Rounding,
        found: Found,
    ) -> torch.Tensor:
        """Return ``value`` unchanged."""
        ctx.save_for_backward(value)
        ctx.key, ctx.rounding, ctx.found = key, rounding, found
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Record ``g . delta`` and return the gradient without NaNs."""
        (value,), (grad,) = ctx.saved_tensors, grads
        moved = _product(grad, ctx.rounding.unchecked(value, ctx.key))
        if moved is None:
            grad = torch.where(grad.isnan(), 0, grad)
            moved = _careful_product(grad, ctx.rounding.error(value, ctx.key))
        ctx.found.append((ctx.key, moved))
        return grad, grad.new_zeros(()), None, None, None


class Shift(torch.autograd.Function):
    """Identity with a backward pass that records the effect of a change of its input.

    It stands for the probe of an operand in which an op is linear, such as a weight:
    the change of the result is known beforehand, so that no gradient of the operand is
    computed in any of the backward passes.
    """

    @staticmethod
    def forward(  # autograd takes no keywords
        ctx: Any,
        value: torch.Tensor,
        token: torch.Tensor,  # noqa: ARG004  # makes the result need a gradient
        key: Key,
        change: torch.Tensor,
        found: Found,
    ) -> torch.Tensor:
        """Return ``value`` unchanged; a rounding adds ``change`` to it."""
        ctx.key, ctx.change, ctx.found = key, change, found
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Record ``g . change`` and return the gradient without NaNs."""
        (grad,) = grads
        moved = _product(grad, ctx.change)
        if moved is None:
            grad = torch.where(grad.isnan(), 0, grad)
            change = torch.where(ctx.change.isnan(), 0, ctx.change)
            moved = _careful_product(grad, change)
        ctx.found.append((ctx.key, moved))
        return grad, grad.new_zeros(()), None, None, None


def _product(grad: torch.Tensor, delta: torch.Tensor) -> torch.Tensor | None:
    """Return ``grad . delta``; None if it is not finite.

    If it is, so is every element of ``grad``: that saves the tests of the elements.
    """
    wide = torch.float64 if grad.dtype.itemsize < 4 else None  # noqa: PLR2004  # bytes
    moved = (grad * delta).sum(dtype=wide)
    return moved.double() if isfinite(float(moved)) else None


def _careful_product(grad: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return ``grad . delta``, without elements that have no delta."""
    moved = torch.where(delta == 0, 0, grad * delta)  # where g is infinite, too
    return moved.sum(dtype=torch.float64)
