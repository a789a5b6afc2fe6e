"""The probe of a value: an identity that finds what rounding here would do."""

from dataclasses import dataclass, field
from typing import Any

import torch

from amprewrite.plan.sensitivity import Key

Found = list[tuple[Key, torch.Tensor]]
"""What the probes found in one backward pass: ``g . delta`` by key."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a value to the low dtype and back.

    Attributes:
        low: The low dtype.
        saturated: Values whose finite numbers stay finite.
        kernels: Errors of values whose kernels round more than them, as measured.
    """

    low: torch.dtype
    saturated: frozenset[str]
    kernels: dict[Key, torch.Tensor] = field(default_factory=dict[Key, torch.Tensor])

    def error(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        """Return the error of each element; none where ``value`` is not finite."""
        saturates = (key if isinstance(key, str) else key[0]) in self.saturated
        error = self.kernels.get(key)
        if error is None:
            held = self.saturate(value) if saturates else value.to(self.low)
            error = held.to(value.dtype) - value
        finite = value.isfinite()
        return error if finite.all() else torch.where(finite, error, 0)

    def saturate(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` in the low dtype; what is finite stays finite."""
        limit = torch.finfo(self.low).max
        held = torch.where(value.isinf(), value, value.clamp(-limit, limit))
        return held.to(self.low)


class Probe(torch.autograd.Function):
    """An identity whose backward pass adds to a list what a rounding here would do.

    The token is a number that every probe takes, so that all are differentiated. A
    gradient that is NaN counts as none: so it is where the infinite derivative of a
    root or a logarithm meets the zero of a ``where`` that drops its value.
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
        """Return ``value`` as it is."""
        ctx.save_for_backward(value)
        ctx.key, ctx.rounding, ctx.found = key, rounding, found
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Add ``g . delta`` to what was found; the gradient passes as it is."""
        (value,), (grad,) = ctx.saved_tensors, grads
        grad = torch.where(grad.isnan(), 0, grad)
        delta = ctx.rounding.error(value, ctx.key)
        moved = torch.where(delta == 0, 0, grad * delta)  # where g is infinite, too
        ctx.found.append((ctx.key, moved.sum(dtype=torch.float64)))
        return grad, grad.new_zeros(()), None, None, None
