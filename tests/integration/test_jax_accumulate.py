"""Sums that read and write low and add in full, and statistics that stay full."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from tests.jax_programs import checked_jaxpr, normal, relative_error, weight

pytestmark = pytest.mark.usefixtures("optimized_xla", "strict_jax")

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""

X = normal(512, 64)
W = weight(64, 64)
BIAS = jnp.full((64,), 100.0)


def pooled(x, w, bias):
    return (x @ w + bias).mean(0) @ w


def running(x, w, bias):
    return lax.cumsum(x @ w + bias, axis=1) @ w


def fast_norm(x, w, bias):
    h = x @ w + bias
    mean = h.mean(-1, keepdims=True)
    variance = (h * h).mean(-1, keepdims=True) - mean * mean
    return (h - mean) * lax.rsqrt(variance + 1e-5)


def exact(function):
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(part), jnp.float64) for part in (X, W, BIAS))
        return np.asarray(function(*wide))


def converted(function, policy, placement, **options):
    given = {"args": (X, W, BIAS), "placement": placement, **options}
    return amprewrite.convert(function, policy, **given)


@pytest.mark.parametrize(
    ("function", "primitive"), [(pooled, "reduce_sum"), (running, "cumsum")]
)
def test_a_low_sum_adds_in_full(function, primitive):
    # A compiler fuses what feeds the sum, so that low storage saves nothing there.
    program = converted(function, "bf16-accumulate", "optimal", target="eager")
    (decision,) = (d for d in program.plan.decisions if d.native == primitive)
    assert (decision.op_class, decision.precision) == ("accumulate", "bfloat16")
    eqns = checked_jaxpr(program, X, W, BIAS).jaxpr.eqns
    (bound,) = (e for e in eqns if e.primitive.name == primitive)
    assert [str(v.aval.dtype) for v in (*bound.invars, *bound.outvars)] == [
        "float32"
    ] * 2
    for run in (program, jax.jit(program)):
        assert relative_error(run(X, W, BIAS), exact(function)) < 2 * ROUNDING


@pytest.mark.parametrize("placement", ["promote", "optimal"])
def test_a_statistic_that_is_wanted_full_is_not_rounded(placement):
    """The difference of two rounded means of squares would be noise."""
    strict, loose = (
        relative_error(converted(fast_norm, policy, placement)(X, W, BIAS), found)
        for policy in ("bf16", "bf16-accumulate")
        for found in [exact(fast_norm)]
    )
    assert loose < 1.2 * strict < 2 * ROUNDING
