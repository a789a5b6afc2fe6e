"""Norms with a low input and full parameters compute in full, as installed.

Only the results are rounded, once: forward, backward, and the running statistics. That
is why ``policies/bf16.toml`` lets batch norm and instance norm read and write low.
"""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: N812  # torch's own name

CHANNELS = 16

Norm = Callable[..., Any]
"""A norm of an input, a weight, a bias, a running mean and a running variance."""

NORMS: dict[str, Norm] = {
    "batch_norm": lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=True),
    "batch_norm_inference": lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
    "instance_norm": lambda x, w, b, m, v: F.instance_norm(x, m, v, w, b),
    "group_norm": lambda x, w, b, *_: F.group_norm(x, 4, w, b),
}

OFFSETS = (0.0, 10.0, 100.0)
"""Means of the input, in standard deviations."""

SUMMED_OTHERWISE = 2e-5
"""Largest relative difference of float32 sums in another order, at these offsets."""

ROUNDED_OTHERWISE = 0.03
"""Largest share of elements that such a difference rounds to the other side."""


def run(norm: Norm, x: Any, gradient: Any, offset: float) -> dict[str, Any]:
    """Return the result, the gradients and the running statistics."""
    draws = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(2, CHANNELS, generator=draws).unbind()
    mean, variance = torch.full((CHANNELS,), offset), torch.ones(CHANNELS)
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    out = norm(*leaves, mean, variance)
    by_input, by_weight, by_bias = torch.autograd.grad(out, leaves, gradient)
    full = {"weight": by_weight, "bias": by_bias, "mean": mean, "variance": variance}
    return {"out": out.detach(), "input": by_input, **full}


@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize("norm", NORMS.values(), ids=list(NORMS))
def test_a_low_input_is_rounded_by_nothing_but_the_results(
    norm: Norm, low: str, offset: float, memory: str
) -> None:
    draws = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 4, CHANNELS, 12, 12, generator=draws).unbind()
    dtype, layout = getattr(torch, low), {"memory_format": getattr(torch, memory)}
    x, gradient = ((t).to(dtype, **layout) for t in (x + offset, gradient))
    found = run(norm, x, gradient, offset)
    wanted = run(norm, x.float(), gradient.float(), offset)
    for name, value in found.items():
        full = wanted[name]
        if name in ("out", "input"):
            assert value.dtype == dtype
            assert (value != full.to(dtype)).float().mean() <= ROUNDED_OTHERWISE
        else:
            assert value.dtype == torch.float32
            assert (value - full).norm() <= SUMMED_OTHERWISE * full.norm(), name


def test_the_gradient_of_a_layer_norms_weight_is_summed_in_low() -> None:
    """torch's kernel for CPUs does so, which is one reason to deny layer norms."""
    draws = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 256, 64, generator=draws).bfloat16().unbind()
    errors: list[float] = []
    for dtype in (torch.bfloat16, torch.float32):
        weight, bias = torch.ones(64, requires_grad=True), torch.zeros(64)
        out = F.layer_norm(x.to(dtype), (64,), weight, bias)
        (found,) = torch.autograd.grad(out, weight, gradient.to(dtype))
        exact = torch.ones(64, dtype=torch.float64, requires_grad=True)
        wide = F.layer_norm(x.double(), (64,), exact, bias.double())
        (wanted,) = torch.autograd.grad(wide, exact, gradient.double())
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[0] > 1e-3
    assert errors[1] < 1e-5
