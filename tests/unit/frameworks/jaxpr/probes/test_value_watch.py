"""Values are shown op by op and turn by turn, and turns are counted."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.full_precision import count_iterations
from tests.unit.frameworks.jaxpr.probes.test_sensitivity import sample_of

X = jnp.arange(1.0, 5.0)


def test_loops_are_counted_and_shown_turn_by_turn():
    def run(x):
        def turn(h, n):
            return lax.while_loop(lambda s: s < n, lambda s: s + 1.5, h), n

        last, _ = lax.scan(turn, jnp.zeros(()), x * 2)
        return lax.cond(last > 0, jnp.sin, jnp.cos, last) * jnp.sum(x)

    seen = {}
    sample = sample_of(run, X)

    def look(op, name, value):
        seen.setdefault(name, []).append((op, float(jnp.max(value))))

    iterations = count_iterations(sample, look)
    assert list(iterations.values()) == [2]
    assert seen["input_0"] == [("", 4.0)]
    inside = [values for name, values in seen.items() if len(values) > 3]
    assert inside  # what the loops make, at every turn
    assert "sin" in seen
    assert "cos" not in seen


def test_a_loop_that_does_not_turn():
    def run(x):
        last, rows = lax.scan(lambda h, row: (h + row, h), jnp.zeros(()), x[:0])
        return last + rows.sum(), lax.while_loop(lambda h: h > 9, jnp.sin, x[0])

    assert list(count_iterations(sample_of(run, X)).values()) == [0]


def test_nothing_is_traced_inside_a_trace():
    sample = sample_of(lambda x: jnp.sin(x) * 2, X)
    seen = []

    def look(op, name, value):
        seen.append((op, name, np.asarray(value)))

    def outer(x):
        count_iterations(sample, look)
        return x

    jax.jit(outer)(X)
    assert len(seen) == 3
