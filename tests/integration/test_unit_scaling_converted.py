"""Unit-scaled models go through ``convert``: factors stay, in both directions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp
from torch import nn

import amprewrite
from amprewrite.unit_scaling.jax import scale, scale_bwd
from amprewrite.unit_scaling.torch import scale as torch_scale

NORMAL = np.arange(0x0080, 0x7F80, dtype=np.uint32) << 16
"""The bits of all positive normal numbers of bfloat16, as float32."""


def test_a_scaled_torch_model_is_classed_by_its_factors():
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    plain = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    model = amprewrite.unit_scale(plain, (x,))
    converted = amprewrite.convert(model, args=(x,))
    scales = [d for d in converted.plan.decisions if d.canonical == "scale"]
    assert {d.op_class for d in scales} == {"follow", "promote"}
    assert amprewrite.verify(model, converted, (x,), gradients=True, rtol=2e-2).ok


class Factors(nn.Module):
    """Powers of two around a contraction."""

    def forward(self, x, w):
        return torch_scale(torch_scale(x, 0.25, 4.0) @ w, 8.0, 0.5)


def factors(x, w):
    """The same in JAX."""
    return scale(scale(x, 0.25, 4.0) @ w, 8.0, 0.5)


def test_both_frameworks_follow_powers_of_two():
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    args = (torch.tensor(x, requires_grad=True), torch.tensor(w))
    one = amprewrite.convert(Factors(), args=args)
    two = amprewrite.convert(factors, args=(x, w))
    for plan in (one.plan, two.plan):
        classes = [d.op_class for d in plan.decisions if d.canonical == "scale"]
        assert classes == ["follow", "follow"]
    made = one(*args)
    made.sum().backward()
    value, back = jax.vjp(two, x, w)
    assert np.allclose(made.detach().numpy(), value, rtol=1e-2, atol=1e-2)
    ct = back(jnp.ones_like(value))[0]
    assert np.allclose(args[0].grad.numpy(), ct, rtol=1e-2, atol=1e-2)
    wanted = 2.0 * np.ones((8, 8)) @ w.T  # 4 * 0.5: the backward factors
    assert np.abs(ct - wanted).max() < 0.05 * np.abs(wanted).max()


def test_the_gradient_of_a_scaled_function_is_converted():
    def total(x):
        return (scale_bwd(x, 4.0) @ jnp.eye(4)).sum()

    converted = amprewrite.convert(jax.grad(total), args=(jnp.ones((4, 4)),))
    classes = {d.op_class for d in converted.plan.decisions if d.canonical == "scale"}
    assert classes == {"follow"}
    assert jnp.allclose(converted(jnp.ones((4, 4))), 4.0)


@pytest.mark.parametrize("factor", [0.5, 4.0, -2.0])
def test_a_power_of_two_commutes_with_a_cast(factor):
    """Numbers beside the normal bfloat16 numbers, with room for the factor."""
    bits = NORMAL[256:-512] + np.arange(0, len(NORMAL) - 768, dtype=np.uint32)
    x = torch.tensor(bits.view(np.float32))
    before = torch_scale(x.bfloat16(), factor, 1.0)
    after = torch_scale(x, factor, 1.0).bfloat16()
    assert torch.equal(before, after)
    found = scale(jnp.asarray(x.numpy()).astype(jnp.bfloat16), factor, 1.0)
    assert np.array_equal(found.astype(jnp.float32), before.float().numpy())
