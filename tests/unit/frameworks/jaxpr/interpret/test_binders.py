"""Primitives that contract: every layout runs on every backend."""

import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.frameworks.jaxpr.interpret.contractions import binder
from tests.jax_contractions import dot, operand, plain
from tests.jax_programs import normal, relative_error, weight

CRASHING = [
    ("bckm", "cbkn", None),
    ("bckm", "kbcn", None),
    ("bkm", "kbn", None),
    ("bkm", "nkb", None),
    ("km", "kn", (None, 1)),
    ("km", "nk", (0, 2)),
    ("bkm", "bkn", (0, 3)),
    ("bkm", "nbk", (None, 0)),
    ("mk", "kn", "transposed"),
    ("bmk", "bkn", "transposed"),
    ("hkm", "hkn", None),
    ("bhkm", "hbkn", None),
    ("hmk", "khn", (0, 0)),
    ("km", "kn", "swapped"),
    ("mk", "nk", "swapped"),
]
"""Layouts that jaxlib 0.10.2 compiles into code that fails on a CPU; some by vmap."""


@pytest.mark.parametrize(("left", "right", "how"), CRASHING)
def test_layouts_that_xla_cannot_run_run(left, right, how):
    bind = dot(left, right)
    x, y = operand(left), operand(right, 1)
    expected = plain(left, right, x, y)

    def run(x, y):
        out = bind(x, y, "float32")
        return jnp.swapaxes(out, -1, -2) + 1.0 if how == "transposed" else out

    if how == "swapped":  # XLA folds this transposition into the contraction
        x, contracted = jnp.swapaxes(x, -1, -2), run

        def run(x, y):
            return contracted(jnp.swapaxes(x, -1, -2), y)

    if how == "transposed":
        expected = np.swapaxes(expected, -1, -2) + 1.0
    if isinstance(how, tuple):
        axes = how
        run = jax.vmap(run, axes)
        x, y = (
            a if axis is None else jnp.stack([a, a], axis)
            for a, axis in zip((x, y), axes, strict=True)
        )
        expected = np.stack([expected, expected])
    found = jax.jit(run)(x, y)
    assert found.dtype == jnp.float32
    assert relative_error(found, expected) < 1e-6


@pytest.mark.slow
def test_every_layout_with_one_batch_dimension_runs():
    for left in map("".join, itertools.permutations("bmk")):
        for right in map("".join, itertools.permutations("bkn")):
            x, y = operand(left), operand(right, 1)
            found = dot(left, right)(x, y, "float32")
            assert relative_error(found, plain(left, right, x, y)) < 1e-6


def test_a_gradient_of_a_running_sum_runs():
    """The sum is made over transposed values, which XLA folds into what follows."""

    def gradient(x, w):
        return jax.grad(lambda x, w: (jnp.cumsum(x @ w, 0) ** 2).sum(), (0, 1))(x, w)

    x, w = normal(64, 32), weight(32, 32)
    found = jax.jit(amprewrite.convert(gradient))(x, w)
    assert relative_error(found, gradient(x, w)) < 1e-2


def test_a_convolution_is_bound_with_the_dtype_of_its_result():
    image, kernel = (x.astype(jnp.bfloat16) for x in (normal(1, 2, 6), normal(3, 2, 3)))
    (eqn,) = jax.make_jaxpr(lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"))(
        image, kernel
    ).jaxpr.eqns
    bind = binder(eqn.primitive, eqn.params)
    assert bind.primitive is lax.conv_general_dilated_p
    assert bind(image, kernel, "float32").dtype == jnp.float32
