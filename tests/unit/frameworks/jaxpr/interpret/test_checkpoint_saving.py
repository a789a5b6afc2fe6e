"""What policies of ``jax.checkpoint`` are asked about, and what follows from it."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.extend import core as jex
from jax.interpreters import mlir

from amprewrite.frameworks.jaxpr.compat.untyped import ad
from amprewrite.frameworks.jaxpr.interpret.contractions import show_policies

halved_p = jex.Primitive("halved")
halved_p.def_impl(lambda x: x / 2)
halved_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(halved_p, mlir.lower_fun(lambda x: x / 2, False))
ad.deflinear(halved_p, lambda ct: [halved_p.bind(ct)])
show_policies(halved_p, lambda x: (jax.lax.div_p, (x, x), {"told": True}))

X = jnp.arange(4.0)


def program(policy):
    """The cosine needs what the primitive made."""
    return jax.checkpoint(lambda x: jnp.sin(halved_p.bind(jnp.exp(x))), policy=policy)


def saved(policy):
    closed = jax.make_jaxpr(lambda x: jax.vjp(program(policy), x)[1])(X).jaxpr
    makers = {v: eqn.primitive.name for eqn in closed.eqns for v in eqn.outvars}
    return [(makers.get(v, "input"), str(v.aval.memory_space)) for v in closed.outvars]


def test_a_policy_is_asked_about_the_other_primitive():
    asked = []

    def policy(primitive, *avals, **params):
        asked.append((primitive.name, len(avals), params))
        return False

    saved(policy)
    assert ("div", 2, {"told": True}) in asked
    assert "halved" not in {name for name, *_ in asked}


def test_what_a_policy_moves_waits_in_the_other_memory():
    move = jax.checkpoint_policies.offload_dot_with_no_batch_dims

    def policy(primitive, *_, **__):
        dims = {"dimension_numbers": (((0,), (0,)), ((), ()))}
        asked = jax.lax.dot_general_p if primitive is jax.lax.div_p else primitive
        return move("device", "pinned_host")(asked, **dims)

    assert [memory for _, memory in saved(policy)][-1].endswith("Host")


def test_what_a_policy_saves_is_not_made_again():
    found = saved(lambda primitive, *_, **__: primitive is jax.lax.div_p)
    assert [name for name, _ in found] == ["input", "reduce_precision"]
    assert [name for name, _ in saved(None)] == ["input"]


def test_the_derivative_is_the_same_with_every_policy():
    expected = jax.grad(lambda x: jnp.sin(jnp.exp(x) / 2).sum())(X)
    for keep in (True, False):
        checkpointed = program(lambda *_, keep=keep, **__: keep)
        (found,) = jax.jit(jax.vjp(checkpointed, X)[1])(jnp.ones(4))
        assert jnp.allclose(found, expected)


def test_a_policy_that_answers_nonsense_is_told_so():
    with pytest.raises(TypeError, match="policy should be a bool"):
        saved(lambda primitive, *_, **__: "yes" if primitive is jax.lax.div_p else True)
