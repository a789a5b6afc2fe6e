"""From a jaxpr to a program: calls inlined, bodies opened, names once."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Number, all_steps

X = jnp.ones((2, 2))


def program_of(function, *args):
    return inline(jax.make_jaxpr(function)(*args or (X,)))


def primitives(function, *args):
    return [s.primitive for s in all_steps(program_of(function, *args).steps)]


def test_calls_are_inlined_and_join_their_scopes():
    def program(x):
        with jax.named_scope("outer"):
            return jax.jit(jax.named_scope("inner")(jnp.sin))(x)

    (step,) = program_of(program).steps
    assert step.primitive == "sin"
    assert step.scopes[0] == "outer"
    assert step.scopes[-1] == "inner"


def test_names_are_used_once():
    def program(x):
        layer = jax.jit(lambda x: jnp.sin(x) @ x)
        return lax.scan(lambda c, _: (layer(layer(c)), None), layer(x), None, length=2)

    found = program_of(program)
    steps = list(all_steps(found.steps))
    assert len({step.name for step in steps}) == len(steps)
    made = [name for step in steps for name in step.results]
    assert set(made) <= found.avals.keys()


def test_numbers_are_numbers_and_arrays_are_constants():
    table = jnp.arange(4.0).reshape(2, 2)
    found = program_of(lambda x: (x * 2.0 + table) * jnp.float32(3.0))
    numbers = [a for s in found.steps for a in s.operands if isinstance(a, Number)]
    assert [float(n.value) for n in numbers] == [2.0, 3.0]
    assert {n.dtype for n in numbers} == {"float32"}
    (name,) = found.constants
    assert found.avals[name].shape == (2, 2)


@pytest.mark.parametrize(
    ("function", "bodies", "kinds"),
    [
        (
            lambda x: lax.scan(lambda c, _: (c @ x, c), x, x[None]),
            1,
            ["enter", "carry", "enter"],
        ),
        (
            lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + x, x),
            2,
            ["carry"],
        ),
        (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), 2, ["enter"]),
        (jax.checkpoint(jnp.sin), 1, [None]),
        (jax.nn.relu, 1, [None]),
    ],
)
def test_bodies_are_opened(function, bodies, kinds):
    step = next(s for s in program_of(function).steps if s.bodies)
    assert len(step.bodies) == bodies
    found = [e.kind if e else None for e in step.bodies[0].enters]
    assert found == kinds


def test_a_shared_body_hands_on_what_it_did_not_make():
    found = program_of(jax.checkpoint(lambda y: (y, jnp.sin(y), 1.0)))
    (step,) = found.steps
    assert [leave.kind if leave else None for leave in step.leaves] == [
        "leave",
        None,
        "leave",
    ]


def test_what_is_not_known_is_a_fence():
    def program(x):
        named = jax.custom_batching.custom_vmap(jnp.sin)
        named.def_vmap(lambda _size, batched, x: (named(x), batched[0]))
        jax.debug.print("{}", x)
        return named(x)

    fences = {s.primitive: s.fence for s in program_of(program).steps}
    assert all(fences.values())
    table = lax.reduce(X, 0.0, lambda a, b: a * 2.0 + b, (0,))
    assert table.shape == (2,)
    assert primitives(lambda x: lax.platform_dependent(x, default=jnp.sin))
