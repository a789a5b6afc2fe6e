"""Linear layers in 8 bits with delayed scales, for torch: the state is in buffers."""

import copy
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from amprewrite.errors import UnsupportedError
from amprewrite.training.delayed import DelayedRule


class DelayedScale(nn.Module):
    """State of the scale of one tensor, and its rounding.

    ``amaxes`` are the largest numbers of earlier steps, the last one first;
    ``saturated`` counts the elements that were beyond the range so far. Both are
    buffers, and change in training mode only.
    """

    amaxes: torch.Tensor
    saturated: torch.Tensor

    def __init__(self, rule: DelayedRule, name: str) -> None:
        """Set an empty history.

        Args:
            rule: The rule of the scale.
            name: The 8-bit format.
        """
        super().__init__()
        self.rule, self.name = rule, name
        self.register_buffer("amaxes", torch.zeros(rule.history))
        self.register_buffer("saturated", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def round(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` rounded to the format, of its dtype; note its largest number."""
        if not x.numel():
            return x.clone()
        found = self.rule.apply(x.float(), self.amaxes.float(), self.name, torch)
        made, amaxes, saturated = found
        if self.training:
            self.amaxes.copy_(amaxes)
            self.saturated.add_(saturated)
        return made.to(x.dtype)


class _Product(torch.autograd.Function):
    """A linear layer of rounded operands, with a rounded gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: "DelayedLinear"
    ) -> torch.Tensor:
        one, two = layer.of_input.round(x), layer.of_weight.round(weight)
        ctx.save_for_backward(one, two)
        ctx.scale = layer.of_gradient
        return functional.linear(one, two)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        x, weight = ctx.saved_tensors
        rounded = ctx.scale.round(gradient)
        flat, rows = (t.reshape(-1, t.shape[-1]) for t in (rounded, x))
        return rounded @ weight, flat.t() @ rows, None


_PRODUCT: Any = _Product


class DelayedLinear(nn.Linear):
    """A linear layer that multiplies in 8 bits, with delayed scales.

    The parameters are those of ``nn.Linear``. In training mode each call notes the
    largest numbers of its operands, and each backward pass that of its gradient.
    """

    def __init__(
        self,
        plain: nn.Linear,
        rule: DelayedRule,
        forward: str = "float8_e4m3fn",
        backward: str = "float8_e5m2",
    ) -> None:
        """Take the parameters of a layer.

        Args:
            plain: The layer; its parameters are shared.
            rule: The rule of all three scales.
            forward: Format of the operands.
            backward: Format of the gradient of the result.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.of_input = DelayedScale(rule, forward)
        self.of_weight = DelayedScale(rule, forward)
        self.of_gradient = DelayedScale(rule, backward)
        self.to(plain.weight.device)
        self.train(plain.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # torch's name
        """Return the layer of rounded operands.

        Raises:
            UnsupportedError: While a program is captured: the state would be lost.
        """
        if torch.compiler.is_compiling():
            msg = (
                "a program with delayed scales cannot be captured: its state changes "
                "at each call; want scaling = 'current', or run the layer eagerly"
            )
            raise UnsupportedError(msg)
        made = _PRODUCT.apply(input, self.weight, self)
        bias: Any = self.bias  # torch's stub leaves out that there may be none
        return made if bias is None else made + bias


def delay_scales(
    model: nn.Module,
    rule: DelayedRule | None = None,
    *,
    forward: str = "float8_e4m3fn",
    backward: str = "float8_e5m2",
) -> nn.Module:
    """Copy a model, with linear layers in 8 bits by delayed scales.

    Layers of class ``nn.Linear`` itself are replaced, by :class:`DelayedLinear`.

    Args:
        model: The model; it is not changed.
        rule: The rule of the scales; by default ``DelayedRule()``.
        forward: Format of the operands.
        backward: Format of the gradients of results.

    Raises:
        UnsupportedError: The model has no linear layer.
    """
    made = nn.Sequential(copy.deepcopy(model))
    root: Any = made
    named: dict[str, Any] = dict(root.named_modules(remove_duplicate=False))
    layers = {name: part for name, part in named.items() if type(part) is nn.Linear}
    if not layers:
        msg = f"{type(model).__name__} has no nn.Linear; no scale can be delayed"
        raise UnsupportedError(msg)
    found: dict[nn.Linear, DelayedLinear] = {}
    for name, part in layers.items():  # one that is called in two places stays one
        if part not in found:
            found[part] = DelayedLinear(part, rule or DelayedRule(), forward, backward)
        made.set_submodule(name, found[part])
    return made[0]


def saturated(model: nn.Module) -> dict[str, int]:
    """Return the number of elements beyond the range so far, by name of the scale.

    It waits for the device. Scales without any are left out.
    """
    root: Any = model
    parts: dict[str, Any] = dict(root.named_modules())
    found = {
        name: int(part.saturated)
        for name, part in parts.items()
        if isinstance(part, DelayedScale)
    }
    return {name: count for name, count in found.items() if count}
