"""From a jaxpr to a program with its plan."""

import pytest

from amprewrite.dispatch import planner
from amprewrite.dtypes import Processor
from amprewrite.errors import PlanMismatchError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.prepare import Inputs, prepare
from amprewrite.frameworks.jaxpr.promoting import tracing


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
