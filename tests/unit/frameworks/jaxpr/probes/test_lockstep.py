"""Both programs are run step by step, also inside bodies; every op has its errors."""

from contextlib import nullcontext

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from amprewrite.frameworks.jaxpr.probes.full_precision import Wide
from amprewrite.frameworks.jaxpr.probes.lockstep import Lockstep

X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 3


def samples(function, *args, policy="bf16", overrides=(), wide=True, inserted=False):
    """The samples of a walk by the names of their ops."""
    converted = amprewrite.convert(function, policy, args=args, overrides=overrides)
    prepared, _, arrays = converted.prepare(args, {})
    dtypes = {"float32": "float64"} if wide else {}
    found = {}

    def observe(sample):
        if inserted == (sample.decision is not None):
            found[sample.op] = sample

    context = (lambda: jax.enable_x64(True)) if wide else nullcontext
    steps = Lockstep(prepared, Wide(prepared.program, dtypes), context, observe)
    steps.walk(arrays, arrays)
    assert not jax.config.jax_enable_x64
    return found


def size(one, two):
    return np.linalg.norm(one - two) / np.linalg.norm(two)


def test_a_contraction_has_an_own_error_and_what_follows_only_an_accumulated_one():
    found = samples(lambda x, w: jnp.exp(x @ w).T, X, W)
    dot, exp = found["dot_general"], found["exp"]
    exact = np.asarray(X, np.float64) @ np.asarray(W, np.float64)
    np.testing.assert_allclose(dot.reference[0], exact, rtol=1e-14)
    assert 1e-3 < size(dot.alone[0], dot.reference[0]) < 1e-2
    assert size(exp.alone[0], exp.reference[0]) < 1e-6
    assert size(exp.actual[0], exp.reference[0]) > 1e-3
    assert found["transpose"].exact


def test_the_original_s_op_is_run_on_what_the_converted_one_reads():
    dot = samples(lambda x, w: x @ w, X, W)["dot_general"]
    low = [np.asarray(v.astype(jnp.bfloat16), np.float64) for v in (X, W)]
    assert dot.same is not None
    assert dot.again is not None
    np.testing.assert_allclose(dot.same[0], low[0] @ low[1], rtol=1e-14)
    assert 1e-5 < size(dot.again(1e-3, 0)[0], dot.same[0]) < 1e-2
    assert (dot.contracts, dot.length) == (True, 2.0)


def test_casts_are_compared_with_what_they_are_handed():
    found = samples(lambda x, w: jnp.sin(x @ w) @ w, X, W, inserted=True)
    assert "sin for dot_general_1" in found
    for sample in found.values():
        assert sample.same is not None
        assert size(sample.alone[0], sample.same[0]) < 2.0**-8


def test_an_op_that_only_moves_data_is_exact_in_low_precision():
    found = samples(lambda x, w: (x.T[:4] @ w[:4]).T @ x, X, W)
    moved = [s for name, s in found.items() if name.startswith(("transpose", "slice"))]
    assert moved
    assert all(sample.exact for sample in moved)


def test_in_its_own_dtype_nothing_differs():
    found = samples(lambda x, w: jax.nn.softmax(x @ w), X, W, policy="off", wide=False)
    for sample in found.values():
        np.testing.assert_array_equal(sample.actual[0], sample.reference[0])
        np.testing.assert_array_equal(sample.alone[0], sample.reference[0])


@jax.custom_vjp
def ruled(x, w):
    return x @ w


ruled.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: jax.checkpoint(lambda y: y @ w)(x),
        lambda x, w: lax.cond(x.sum() < 99, lambda y: y @ w, lambda y: y, x),
        lambda x, w: lax.switch(7, [lambda y: y, lambda y: y @ w], x),
        ruled,
        jax.custom_jvp(lambda x, w: x @ w),
    ],
    ids=["remat", "cond", "switch", "vjp", "jvp"],
)
def test_bodies_that_run_once_are_entered(function):
    if isinstance(function, jax.custom_jvp):
        function.defjvp(lambda p, t: (p[0] @ p[1], t[0] @ p[1] + p[0] @ t[1]))
    found = samples(lambda x, w: function(x, w) + 1, X, W)
    assert size(found["dot_general"].alone[0], found["dot_general"].reference[0]) > 1e-3
    exact = np.asarray(X, np.float64) @ np.asarray(W, np.float64) + 1
    np.testing.assert_allclose(found["add"].reference[0], exact, rtol=1e-13)


def test_a_loop_is_one_step_named_after_what_leaves_it():
    def loop(x, w):
        last, rows = lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, length=3)
        return last, rows

    found = samples(loop, X, W)
    assert list(found) == ["scan.out0", "scan.out1"]
    assert size(found["scan.out0"].alone[0], found["scan.out0"].reference[0]) > 1e-4
    assert found["scan.out1"].reference[0].shape == (3,)


def test_branches_that_rounding_tells_apart_are_one_step():
    def close(x):
        y = jnp.full((1, 2), 1.001 / 2) @ x
        return lax.cond(y[0, 0] > 1.0005, lambda z: z + 1, lambda z: z - 1, x)

    found = samples(close, jnp.ones((2, 2)))
    assert set(found) >= {"cond.out0"}
    assert size(found["cond.out0"].actual[0], found["cond.out0"].reference[0]) > 0.5


def test_a_mask_beyond_the_range_is_no_error():
    def masked(x, w):
        lowest = jnp.finfo(jnp.float32).min
        scores = jnp.where(x @ w > 0, x @ w, lowest)
        return jnp.maximum(scores, -10.0) @ w

    overrides = [{"op": "where", "class": "allow"}]
    found = samples(masked, X, W, policy="fp16", overrides=overrides)
    for sample in found.values():
        assert all(np.isfinite(array).all() for array in sample.alone)
