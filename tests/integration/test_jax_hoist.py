"""Casts before a loop instead of in it: the same bits, fewer casts, no training."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from benchmarks import jax_zoo
from tests.integration.test_jax_loops import CASES
from tests.jax_programs import (
    checked_jaxpr,
    equations,
    normal,
    relative_error,
    weight,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 16)
XS = normal(6, 4, 16, seed=3)
W = weight(16, 16)
WS = jnp.stack([weight(16, 16, seed=seed) for seed in range(5)])


def layers(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def recurrence(w, u, xs):
    def turn(h, x):
        h = jnp.tanh(h @ w + x @ u)
        return h, h

    return lax.scan(turn, jnp.zeros_like(xs[0]), xs)


def layers_over_time(ws, xs):
    def layer(xs, w):
        return recurrence(w, w.T, xs)[1], None

    return lax.scan(layer, xs, ws)[0]


def both_precisions(ws, x):
    def layer(h, w):
        return jnp.tanh(h @ w) + jnp.exp(w).sum(), None

    return lax.scan(layer, x, ws)[0]


def repeated(w, x):
    def turn(carry):
        count, h = carry
        return count + 1, jnp.tanh(h @ w)

    return lax.while_loop(lambda carry: carry[0] < 3, turn, (0, x))[1]


def closed_over(x):
    return lax.scan(lambda h, _: (jnp.tanh(h @ W), None), x, None, length=4)[0]


LOOPS = {
    "layers": (layers, (WS, X)),
    "recurrence": (recurrence, (W, W.T, XS)),
    "layers over time": (layers_over_time, (WS, XS)),
    "both precisions": (both_precisions, (WS, X)),
    "repeated": (repeated, (W, X)),
    "closed over": (closed_over, (X,)),
}


def bits(tree):
    """Return every array of ``tree`` as bytes, NaN and -0 included."""
    return [(x.dtype, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def both(function, args, policy="bf16"):
    """Return the function converted with casts in the bodies, and before the loops."""
    return tuple(
        amprewrite.convert(function, policy, args=args, training=training)
        for training in (None, False)
    )


def casts_by_depth(closed):
    """Return how many casts of weights stand outside loops, and inside."""
    every = sum(e.primitive.name == "convert_element_type" for e in equations(closed))
    flat = closed.jaxpr.eqns
    outside = sum(e.primitive.name == "convert_element_type" for e in flat)
    return outside, every - outside


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_a_hoisted_program_gives_the_same_bits(name, policy):
    function, args = LOOPS[name]
    inside, before = both(function, args, policy)
    assert bits(inside(*args)) == bits(before(*args))
    assert bits(jax.jit(inside)(*args)) == bits(jax.jit(before)(*args))


@pytest.mark.parametrize("name", CASES)
def test_every_loop_and_branch_gives_the_same_bits(name):
    case = CASES[name]
    inside, before = both(case.function, case.args)
    assert bits(inside(*case.args)) == bits(before(*case.args))


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_every_model_gives_the_same_bits(name):
    function, args = jax_zoo.build(name)
    inside, before = both(function, args)
    assert bits(jax.jit(inside)(*args)) == bits(jax.jit(before)(*args))


def test_a_stack_is_cast_once_before_the_loop():
    inside, before = both(layers, (WS, X))
    assert casts_by_depth(checked_jaxpr(inside, WS, X))[0] == 0
    closed = checked_jaxpr(before, WS, X)
    (scan,) = (e for e in closed.jaxpr.eqns if e.primitive.name == "scan")
    assert [str(v.aval.dtype) for v in scan.invars] == ["float32", "bfloat16"]
    (outer,) = (c for c in before.casts if not c.region)
    assert (outer.value, outer.shape, outer.trips) == ("ws", WS.shape, 1)
    assert [c.trips for c in before.casts if c.region] == [len(WS)]


def test_a_module_keeps_its_leaves_and_its_layers_are_cast_before_their_loop():
    eqx = pytest.importorskip("equinox")

    class Stacked(eqx.Module):
        layers: Any

        def __call__(self, x):
            return layers(self.layers, x)

    model = Stacked(WS)
    inside, before = both(model, (X,))
    assert jax.tree.leaves(before)[0] is WS
    assert bits(inside(X)) == bits(before(X))
    plan = amprewrite.inspect(before)
    assert next((c.value, c.region) for c in plan.casts) == ("layers", "")


@pytest.mark.parametrize("training", [None, True])
def test_what_may_be_differentiated_has_its_casts_in_the_body(training):
    kept = amprewrite.convert(recurrence, args=(W, W.T, XS), training=training)
    assert all(cast.region for cast in kept.casts)


def test_of_nested_loops_the_outermost_that_can_has_the_cast():
    _, before = both(layers_over_time, (WS, XS))
    where = {cast.value: cast.region for cast in before.casts}
    assert where["ws"] == ""
    assert all(where[cast.value] for cast in before.casts if cast.value != "ws")


def test_what_a_body_also_reads_in_full_is_cast_in_it():
    inside, before = both(both_precisions, (WS, X))
    assert inside.casts == before.casts


def test_a_hoisted_gradient_adds_up_in_low():
    """Which is why only what is not trained is hoisted."""
    xs = normal(2048, 4, 16, seed=5)

    def gradient(function):
        return jax.grad(lambda w: (function(w, W, xs)[1] ** 2).sum())(W * 0.5)

    exact = gradient(recurrence)
    kept, hoisted = (gradient(jax.jit(f)) for f in both(recurrence, (W, W, xs)))
    assert relative_error(kept, exact) < 0.2 * relative_error(hoisted, exact)
