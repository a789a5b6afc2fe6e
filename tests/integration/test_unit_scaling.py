"""Models of scaled ops are converted, and keep their factors in both directions."""

import numpy as np
import pytest

import amprewrite

SHAPES = {"up": (64, 32), "down": (32, 64), "x": (16, 32)}
RNG = np.random.default_rng(0)
DRAWN = {name: RNG.standard_normal(s, dtype=np.float32) for name, s in SHAPES.items()}


def network(ops, up, down, x):
    """A residual branch whose factors differ forward and backward."""

    def branch(z):
        return ops.linear(ops.gelu(ops.linear(z, up), constraint=None), down)

    return ops.residual_apply(branch, x, 0.5)


def cosine(a, b):
    a, b = np.ravel(a), np.ravel(b)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def close(found, wanted):
    """Whether directions agree, and sizes to the rounding of bfloat16."""
    sizes = np.linalg.norm(found) / np.linalg.norm(wanted)
    return cosine(found, wanted) > 0.9999 and abs(sizes - 1) < 5e-3


def test_a_torch_model_is_exported_and_trained():
    torch = pytest.importorskip("torch")
    from amprewrite.unit_scaling import functional

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (
                torch.nn.Parameter(torch.from_numpy(DRAWN[name].copy()))
                for name in ("up", "down")
            )

        def forward(self, x):
            return network(functional, self.up, self.down, x)

    model, x = Model(), torch.from_numpy(DRAWN["x"])
    converted = amprewrite.convert(model, args=(x,), training=True)
    plan = converted.plan
    assert "torch.export" in str(plan)
    lowered = [d.canonical for d in plan.decisions if d.precision == "bfloat16"]
    assert lowered.count("linear") == 2
    scales = [d for d in plan.decisions if d.canonical == "scale"]
    assert {d.op_class for d in scales} == {"follow", "promote"}  # 2**n, or it rounds
    assert not plan.unclassified
    found, wanted = (
        torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
        for m in (converted, model)
    )
    assert all(close(a.numpy(), b.numpy()) for a, b in zip(found, wanted, strict=True))


def test_a_function_of_jax_is_converted_and_differentiated():
    jax = pytest.importorskip("jax")
    from amprewrite.unit_scaling import functional_jax

    def loss(function):
        return lambda up, down: (function(up, down, DRAWN["x"]) ** 2).sum()

    def function(up, down, x):
        return network(functional_jax, up, down, x)

    weights = DRAWN["up"], DRAWN["down"]
    converted = amprewrite.convert(function, args=tuple(DRAWN.values()))
    lowered = [d.canonical for d in converted.plan.lowered]
    assert lowered.count("matmul") == 2
    found = jax.grad(loss(converted), (0, 1))(*weights)
    wanted = jax.grad(loss(function), (0, 1))(*weights)
    assert all(close(a, b) for a, b in zip(found, wanted, strict=True))
