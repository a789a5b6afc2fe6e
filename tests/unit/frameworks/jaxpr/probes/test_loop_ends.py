"""Every loop ends; one that rounding keeps from it gives NaN."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.probes.loop_ends import PATIENCE, ending
from tests.unit.frameworks.jaxpr.probes.test_sensitivity import sample_of


def run(step, limit):
    def go(state):
        return state[0] + step, state[1] + 1

    return lax.while_loop(lambda s: s[0] < limit, go, (step * 0, 0))


@pytest.mark.parametrize("iterations", [{}, {"while": 1}, {"while": 8}])
def test_a_loop_that_ends_is_as_it_was(iterations):
    sample = sample_of(run, jnp.float32(1), jnp.float32(8))
    runner = Exact(sample.program)
    runner.handlers = ending(iterations)
    assert list(map(float, runner.program(sample.inputs))) == [8.0, 8.0]


def test_one_that_does_not_is_cut_and_its_floats_are_nan():
    sample = sample_of(run, jnp.float32(0), jnp.float32(8))
    runner = Exact(sample.program)
    runner.handlers = ending({"while": 8})
    value, count = runner.program(sample.inputs)
    assert np.isnan(value)
    assert count == PATIENCE * 9
