"""The probe of a value: an identity that records the effect of rounding it."""

from dataclasses import dataclass, field
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
        error = self.kernels.get(key)
        if error is None:
            error = self._rounded(value, key).to(value.dtype) - value
        finite = value.isfinite()
        return error if finite.all() else torch.where(finite, error, 0)

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
        """Record ``g . delta`` and return the gradient unchanged."""
        (value,), (grad,) = ctx.saved_tensors, grads
        grad = torch.where(grad.isnan(), 0, grad)
        delta = ctx.rounding.error(value, ctx.key)
        moved = torch.where(delta == 0, 0, grad * delta)  # where g is infinite, too
        ctx.found.append((ctx.key, moved.sum(dtype=torch.float64)))
        return grad, grad.new_zeros(()), None, None, None
