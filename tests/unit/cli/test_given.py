"""Options that keep modules and ops full, or let them be low, are rules."""

import inspect
import json

import pytest

from amprewrite.cli.models import Asked, Ruled, planned
from amprewrite.factories import ModelCall
from tests.command_line import done


def precisions(*options):
    plan = json.loads(done("inspect", *options, "--json"))
    return [decision["precision"] for decision in plan["decisions"]]


def test_the_options_are_rules_in_the_order_of_their_caution():
    asked = Asked(
        override=["op=exp,class=allow"],
        op_full=["cos, tan", "sin"],
        keep_full=["decoder.*"],
        low=["encoder"],
    )
    assert asked.overrides(ModelCall(None, ())) == [
        {"op": "exp", "class": "allow"},
        {"op": "cos", "class": "deny"},
        {"op": "tan", "class": "deny"},
        {"op": "sin", "class": "deny"},
        {"path": "decoder.*", "class": "deny"},
        {"path": "encoder", "class": "allow"},
    ]
    assert Asked().overrides(ModelCall(None, ())) == []


def test_modules_and_ops_stay_full_or_become_low(model):
    assert precisions(model) == ["bfloat16", "float32", "float32"]
    assert precisions(model, "--keep-full", "0")[0] == "float32"
    assert precisions(model, "--op-full", "linear,gelu")[0] == "float32"
    assert precisions(model, "--low", "2")[-1] == "bfloat16"


def test_a_path_that_matches_nothing_is_a_warning(model):
    assert "warning: unused rule" in done("convert", model, "--keep-full", "head")


def test_the_ops_of_a_compound_stay_full():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x = jnp.ones((4, 4))
    given = ModelCall(lambda x: jax.nn.silu(x @ x) @ x, (x,))
    assert Asked().inspect(given).select(compound="silu", precision="f32") == ()
    found = Asked(op_full=["silu"]).inspect(given)
    assert {d.precision for d in found.select(compound="silu")} == {"float32"}
    assert found.warnings == ()


def test_a_command_has_the_options_of_its_parameter():
    calls = []

    @planned
    def command(target: str, asked: Ruled, *, top: int = 5) -> None:
        calls.append((target, asked, top))

    options = ["policy", "override", "keep_full", "low", "op_full"]
    parameters = inspect.signature(command).parameters
    assert [*parameters] == ["target", *options, "top"]
    assert parameters["top"].default == 5
    given = dict.fromkeys(options)
    command(**{**given, "target": "a.py:b", "policy": "fp16", "top": 3})
    assert calls == [("a.py:b", Ruled(policy="fp16"), 3)]
