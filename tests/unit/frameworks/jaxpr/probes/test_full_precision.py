"""A program as it was traced, in full precision, that prints nothing."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.program.inline import inline

X = jnp.linspace(-1, 1, 16).reshape(4, 4)


def program_of(function, *args):
    return inline(jax.make_jaxpr(function)(*args))


def test_it_gives_what_the_function_gives_and_prints_nothing(capfd):
    def run(x):
        jax.debug.print("seen {}", x.sum())
        _, rows = lax.scan(lambda h, row: (h + row, h @ x), jnp.zeros(4), x)
        return lax.cond(x[0, 0] < 0, jnp.sin, jnp.cos, rows).astype(jnp.bfloat16)

    (found,) = Exact(program_of(run, X))([X])
    jax.effects_barrier()
    assert "seen" not in capfd.readouterr().out
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, run(X))


def test_contractions_ask_for_all_digits_unless_the_model_says():
    def run(x):
        low = lax.dot(x, x, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)
        return x @ x + low

    closed = jax.make_jaxpr(Exact(program_of(run, X)))([X])
    dots = [e for e in closed.jaxpr.eqns if e.primitive.name == "dot_general"]
    asked = {str(e.params["precision"]) for e in dots}
    assert any("HIGHEST" in text for text in asked)
    assert any("BF16_BF16_F32" in text for text in asked)


def test_every_read_and_every_result_is_shown():
    class Seen(Exact):
        reads, makes = [], []

        def on_read(self, op, index, name, env):
            self.reads.append((name, op))
            return super().on_read(op, index, name, env)

        def on_result(self, step, name, value):
            self.makes.append(name)
            return super().on_result(step, name, value)

        def on_pass(self, boundary, value):
            self.makes.append(boundary.makes)
            return super().on_pass(boundary, value)

    program = program_of(lambda x: lax.cond(x[0, 0] < 0, jnp.sin, jnp.cos, x) * x, X)
    Seen(program)([X])
    assert ("input_0", "mul") in Seen.reads
    assert ("input_0", "cond.0.in0") in Seen.reads
    assert ("sin", "cond.out0") in Seen.reads
    assert {"cond.0.in0", "sin", "cos", "cond", "mul"} <= set(Seen.makes)
