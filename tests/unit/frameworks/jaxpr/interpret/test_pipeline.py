"""From a jaxpr to a program with its plan."""

import pytest

from amprewrite.dispatch import planner
from amprewrite.dtypes import Processor
from amprewrite.errors import PlanMismatchError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.capture.promotion import tracing
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs, prepare


def closed():
    return jax.make_jaxpr(lambda x, w: jnp.exp(x @ w))(
        jnp.ones((2, 3)), jnp.ones((3, 4))
    )


def test_names_and_kinds_of_inputs_reach_the_graph() -> None:
    inputs = Inputs(("x", "w"), {1: "parameter"})
    found = prepare(
        closed(), planner("bf16"), inputs, training=True, captured="by hand"
    )
    assert found.plan.captured == "by hand"
    assert [(v.name, v.kind) for v in found.graph.inputs()] == [
        ("x", "input"),
        ("w", "parameter"),
    ]
    assert found.stored == {"dot_general": "float32", "exp": "float32"}


def test_a_plan_of_another_program_is_refused() -> None:
    other = jax.make_jaxpr(jnp.exp)(jnp.ones(3))
    plan = prepare(other, planner("bf16"), training=True, captured="").plan
    with pytest.raises(PlanMismatchError, match="does not fit"):
        prepare(closed(), planner("bf16"), plan=plan, training=True, captured="")


def test_a_rule_is_converted_by_the_same_policy() -> None:
    found = prepare(closed(), planner("bf16"), training=True, captured="")
    x = jnp.ones((2, 3))

    def run(x):
        return found.converted(lambda x: [x @ x.T], [x])

    text = str(jax.make_jaxpr(run)(x))
    assert "bf16[2,3]" in text
    assert run(x)[0].dtype == jnp.float32


def test_what_was_traced_with_promotion_is_prepared_so() -> None:
    processor = Processor("jax")
    x, w = jnp.ones((2, 3), "bfloat16"), jnp.ones((3, 4), "complex64")

    def function(x, w):
        return jax.lax.dot(x, w), w * jax.lax.rsqrt((w * w).sum())

    with tracing(processor):
        traced = jax.make_jaxpr(function)(x, w)
    inputs = Inputs(("x", "w"), states=((1, 1),), processor=processor)
    found = prepare(traced, planner("promote"), inputs, training=True, captured="")
    assert found.graph.states == ((1, "w"),)
    assert found.promotes is processor
    promoted = [d.canonical for d in found.plan.decisions if d.rule == "promotion"]
    assert promoted == ["matmul", "abs_square"]
    plain = Inputs(("x", "w"))
    found = prepare(traced, planner("promote"), plain, training=True, captured="")
    assert not [d for d in found.plan.decisions if d.rule == "promotion"]


def two_layers(x, w):
    h = jnp.tanh(x @ w)
    with jax.named_scope("last"):
        return h @ w


def given(overrides=()):
    """A program whose plan is that of other rules than its planner has."""
    traced = jax.make_jaxpr(two_layers)(jnp.ones((2, 3)), jnp.ones((3, 3)))
    usual, strict = planner("bf16"), planner("bf16", overrides)
    plan = prepare(traced, strict, training=True, captured="").plan
    return prepare(traced, usual, plan=plan, training=True, captured="")


def again(of, x):
    """What the contractions of a rule read that computes the layers again."""
    scope = jax.named_scope("again")

    def run(x):
        with scope:
            return [two_layers(x, jnp.ones((3, 3)))]

    text = str(jax.make_jaxpr(lambda x: of.converted(run, [x]))(x))
    return text.count("preferred_element_type=float32"), text.count("low_contraction")


def test_a_rule_keeps_full_what_a_given_plan_does() -> None:
    full = given([{"op": "matmul", "class": "deny"}])
    assert full.departs
    assert again(full, jnp.ones((2, 3)))[1] == 0
    assert again(given(), jnp.ones((2, 3)))[1] == 2


def test_a_rule_tells_lines_and_paths_apart() -> None:
    last = given([{"op": "matmul", "path": "last", "class": "deny"}])
    held = {key: paths for key, paths in last.held_full.items() if key[0] == "matmul"}
    assert sorted(held.values(), key=str) == [{"": False}, {"last": True}]
    assert again(last, jnp.ones((2, 3)))[1] == 1


def test_a_plan_that_the_planner_made_holds_nothing() -> None:
    found = prepare(closed(), planner("bf16"), training=True, captured="")
    assert (found.departs, found.held_full) == (False, {})
    assert not list(found.full_in(found.graph))
