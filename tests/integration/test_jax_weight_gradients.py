"""Gradients of weights are sums of full precision on any number of devices."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from tests.jax_programs import (
    checked_jaxpr,
    equations,
    normal,
    operand_dtypes,
    relative_error,
    weight,
)

X = normal(64, 16)
W = weight(16, 16)


def mlp(w, x):
    return jnp.tanh(x @ w) @ w


def scanned(w, x):
    return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0]


def batched(w, x):
    rows = x.reshape(4, 16, 16)
    return jnp.einsum("bnm,mk->bnk", rows, w)


@pytest.fixture(autouse=True, params=[1, 8])
def devices(monkeypatch, request):
    monkeypatch.setattr(jax, "device_count", lambda: request.param)
    jax.clear_caches()  # of what was traced for another number of them


@pytest.mark.parametrize("function", [mlp, scanned, batched])
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_no_gradient_of_a_weight_is_rounded(function, policy):
    """Low contractions of the shape of the weight hand over float32."""
    converted = amprewrite.convert(function, policy, args=(W, X))
    gradient = jax.grad(lambda w, x: (converted(w, x) ** 2).sum())
    dots = [
        eqn
        for eqn in equations(checked_jaxpr(gradient, W, X))
        if eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.shape == W.shape
    ]
    sums = [eqn for eqn in dots if set(operand_dtypes(eqn)) != {"float32"}]
    assert sums
    assert {str(eqn.outvars[0].aval.dtype) for eqn in sums} == {"float32"}


def test_the_gradient_is_the_exact_sum_of_the_low_operands():
    turn = normal(64, 16, seed=3)
    converted = amprewrite.convert(lambda w, x: x @ w, args=(W, X))
    found = jax.grad(lambda w: (converted(w, X) * turn).sum())(W)
    low = (np.asarray(v.astype(jnp.bfloat16), np.float64) for v in (X, turn))
    x, ct = low
    assert relative_error(found, x.T @ ct) < 1e-6
