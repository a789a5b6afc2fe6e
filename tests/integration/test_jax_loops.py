"""Loops and branches: values that pass by carries, slices and choices."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from tests.jax_programs import (
    Case,
    checked_jaxpr,
    equations,
    full_contractions,
    keeps_its_promises,
    normal,
    relative_error,
    weight,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 16)
XS = normal(5, 4, 16, seed=3)
W = weight(16, 16)
V = weight(16, 16, seed=2)


def recurrence(w, xs, **options):
    def turn(h, x):
        h = jnp.tanh(x @ w + h @ w)
        return h, h * 2.0

    return lax.scan(turn, jnp.zeros_like(xs[0]), xs, **options)


def scan_of_integers(w, x):
    def turn(carry, i):
        h, n = carry
        return (jnp.tanh(h @ w) + i.astype(jnp.float32) * 0.01, n + i), n

    return lax.scan(turn, (x, jnp.int32(0)), jnp.arange(4))


def scan_without_slices(w, x):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)


def nested_scans(w, xs):
    def outer(h, x):
        def inner(g, _):
            g = jnp.tanh(g @ w) + x
            return g, g.sum()

        h, sums = lax.scan(inner, h, None, length=2)
        return h, sums

    return lax.scan(outer, jnp.ones_like(xs[0]), xs)


def scan_of_custom_vjp(w, x):
    @jax.custom_vjp
    def layer(h, w):
        return jnp.tanh(h @ w)

    def forward(h, w):
        y = layer(h, w)
        return y, (h, w, y)

    def backward(kept, g):
        h, w, y = kept
        d = g * (1 - y * y)
        return d @ w.T, h.T @ d

    layer.defvjp(forward, backward)
    return lax.scan(lambda h, _: (layer(h, w), None), x, None, length=3)[0]


def scan_in_branch(w, x):
    def loop(x):
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), h), x, None, length=2)[0]

    return lax.cond(x.sum() > 0, loop, lambda x: x @ w, x)


def swapped_carry(w, x):
    def turn(carry, _):
        a, b = carry
        return (b, jnp.tanh(a @ w)), a

    return lax.scan(turn, (x, x * 2), None, length=4)


def carried_constant(x):
    return lax.scan(lambda c, _: (c, c @ W), x, None, length=2)


def bounded_loop(w, x):
    return lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w), x)


def open_loop(w, x):
    def goes_on(carry):
        h, n = carry
        return (n < 5) & (jnp.abs(h).max() > 0.01)

    def turn(carry):
        h, n = carry
        return jnp.tanh(h @ w), n + 1

    return lax.while_loop(goes_on, turn, (x, 0))


def loop_tested_by_contraction(w, x):
    """A loop whose test contracts behind an activation, where exactness ends."""

    def goes_on(carry):
        h, n = carry
        return (jnp.tanh(h @ w).sum() < 1e6) & (n < 3)

    turn = lambda c: (jnp.tanh(c[0] @ w), c[1] + 1)  # noqa: E731
    return lax.while_loop(goes_on, turn, (x, 0))[0]


def choice(w, v, x):
    return lax.cond(x.mean() > 0, lambda x: x @ w, lambda x: jnp.exp(x @ v), x)


def choice_of_full_and_low(w, x):
    return lax.cond(x.mean() > 0, lambda x: x @ w, lambda x: x, jnp.sin(x)) @ w


def choice_of_numbers(w, x):
    return lax.cond(x.mean() > 0, lambda: 1.0, lambda: 2.0) * (x @ w)


def switch(w, v, x, index):
    branches = [lambda x: x @ w, lambda x: x, lambda x: jnp.tanh(x @ v) @ w]
    return lax.switch(index, branches, x)


def mapped(w, xs):
    return lax.map(lambda x: jax.nn.softmax(x @ w), xs)


def associative(xs):
    return lax.associative_scan(jnp.matmul, xs)


def associative_products(w, x):
    return lax.associative_scan(jnp.multiply, x @ w, axis=1)


CASES = {
    "scan": Case(recurrence, (W, XS)),
    "scan reverse": Case(lambda w, xs: recurrence(w, xs, reverse=True), (W, XS)),
    "scan unrolled": Case(lambda w, xs: recurrence(w, xs, unroll=2), (W, XS)),
    "scan fully unrolled": Case(lambda w, xs: recurrence(w, xs, unroll=True), (W, XS)),
    "scan of one": Case(recurrence, (W, XS[:1])),
    "scan of none": Case(
        lambda w, x: lax.scan(
            lambda h, y: (h @ w, h @ y), x, jnp.zeros((0, 16, 16), jnp.float32)
        ),
        (W, X),
    ),
    "scan of integers": Case(scan_of_integers, (W, X)),
    "scan without slices": Case(scan_without_slices, (W, X)),
    "nested scans": Case(nested_scans, (W, XS)),
    "scan of custom_vjp": Case(scan_of_custom_vjp, (W, X)),
    "scan in cond": Case(scan_in_branch, (W, X)),
    "swapped carry": Case(swapped_carry, (W, X)),
    "carried constant": Case(carried_constant, (X,)),
    "fori": Case(bounded_loop, (W, X)),
    "while": Case(open_loop, (W, X), grad=False),
    "while tested by a contraction": Case(
        loop_tested_by_contraction, (W, X), grad=False
    ),
    "cond": Case(choice, (W, V, X)),
    "cond of full and low": Case(choice_of_full_and_low, (W, X)),
    "cond of numbers": Case(choice_of_numbers, (W, X)),
    "switch": Case(switch, (W, V, X, jnp.int32(2))),
    "lax.map": Case(mapped, (W, XS)),
    "associative_scan": Case(associative, (normal(5, 8, 8, scale=8**-0.5),)),
    "associative_scan of products": Case(associative_products, (W[:, :6], X)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_construct_keeps_its_promises(name):
    keeps_its_promises(CASES[name])


def test_a_loop_has_the_contraction_that_its_test_sums_in_full():
    """Without an activation between, and all that makes the carry of it."""

    def goes_on(carry):
        h, n = carry
        return ((h @ W).sum() < 1e6) & (n < 3)

    def looped(x):
        h, n = lax.while_loop(goes_on, lambda c: (c[0] @ W, c[1] + 1), (x, 0))
        return h, n, x @ W

    converted = amprewrite.convert(looped)
    assert len(full_contractions(checked_jaxpr(converted, X))) == 2
    assert [d.canonical for d in converted.plan.lowered] == ["matmul"], "the last one"
    found, expected = converted(X), looped(X)
    assert found[1] == expected[1]
    assert relative_error(found[0], expected[0]) < 1e-6


def test_a_carry_keeps_its_dtype_and_what_is_read_in_a_loop_is_cast_inside():
    converted = amprewrite.convert(recurrence)
    closed = checked_jaxpr(converted, W, XS)
    (scan,) = (e for e in closed.jaxpr.eqns if e.primitive.name == "scan")
    outside = [e for e in closed.jaxpr.eqns if "convert" in e.primitive.name]
    assert [str(v.aval.dtype) for v in scan.invars] == ["float32"] * 3
    assert not [e for e in outside if e.invars[0] in closed.jaxpr.invars]
    inside = list(equations(scan.params["jaxpr"]))
    assert sum(e.primitive.name == "convert_element_type" for e in inside) >= 3


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_applied_again_as_it_is(name):
    case = CASES[name]
    plan = amprewrite.inspect(case.function, args=case.args)
    again = amprewrite.convert(case.function, args=case.args, plan=plan)
    assert again.plan.decisions == plan.decisions
