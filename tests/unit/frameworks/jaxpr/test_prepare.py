"""From a jaxpr to a program with its plan."""

import pytest

from amprewrite.api import planner
from amprewrite.errors import PlanMismatchError

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # after the skip

from amprewrite.frameworks.jaxpr.prepare import Inputs, prepare  # noqa: E402


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
