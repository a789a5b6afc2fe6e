"""Values pass into and out of bodies in the dtypes that the plan says."""

import numpy as np
import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp

W = jnp.eye(4)


def avals(function, *args):
    jaxpr = jax.make_jaxpr(amprewrite.convert(function))(*args)
    return next(e for e in jaxpr.eqns if e.primitive.name == "scan")


def test_slices_and_results_pass_low_and_the_carry_full() -> None:
    def function(xs, h):
        low = jnp.tanh(xs @ W)  # made low before the loop

        def turn(h, x):
            return h + x.sum(), jnp.tanh(x @ W)

        last, all_ = jax.lax.scan(turn, h, low)
        return last, all_ @ W

    eqn = avals(function, jnp.ones((3, 2, 4)), jnp.float32(0))
    made = [str(a.dtype) for a in eqn.params["jaxpr"].out_avals]
    read = [str(a.dtype) for a in eqn.params["jaxpr"].in_avals]
    assert made == ["float32", "bfloat16"]
    assert read[-1] == "bfloat16"


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_numbers_pass_as_they_are() -> None:
    def function(x):
        def turn(h, _):
            return h * 2 + 1, h

        return jax.lax.scan(turn, np.float32(3), x)

    last, all_ = amprewrite.convert(function)(jnp.ones(4))
    assert float(last) == 63
    np.testing.assert_array_equal(all_, [3, 7, 15, 31])
