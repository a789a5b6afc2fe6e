"""Models are inspected and explained; JSON parses."""

import json

from amprewrite.plan import Plan
from tests.command_line import done, mistake


def test_inspect_shows_summary_and_modules(model):
    text = done("inspect", model)
    assert "rewritten 1 of 3 ops to bfloat16" in text
    assert "casts by module" in text
    assert "decisions" not in text


def test_inspect_shows_every_decision_if_asked(model):
    assert "layer_norm wants full precision" in done("inspect", model, "--ops")


def test_inspect_json_is_a_plan(model, tmp_path):
    written = tmp_path / "plan.json"
    text = done("inspect", model, "--json", "--output", written)
    plan = Plan.from_json(json.loads(text))
    assert plan == Plan.load(written)
    assert plan.low == "bfloat16"


def test_inspect_explains_one_op(model):
    text = done("inspect", model, "--explain", "layer_norm")
    assert "class    deny, by groups.normalisation" in text


def test_inspect_prints_the_graph_as_it_is(model):
    text = done("inspect", model, "--graph")
    assert "%input_1: f32[4,16] input" in text
    assert "bf16" not in text


def test_inspect_takes_any_policy(model, policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\nlinear = "deny"\n')
    assert "NOTHING WAS LOWERED" in done("inspect", model, "--policy", policy_file)
    jmp = "params=float32,compute=float32,output=float32"
    assert "rewritten" not in done("inspect", model, "--policy", jmp)


def test_a_tolerance_is_a_number_or_a_word(model):
    optimal = ("--placement", "optimal", "--json")
    plan = json.loads(done("inspect", model, *optimal, "--tolerance", "0.5"))
    assert plan["predicted_error"] is not None
    wrong = mistake("convert", model, *optimal, "--tolerance", "auto")
    assert "want a relative error above 0" in wrong
    promote = ("--placement", "promote", "--tolerance", "1e-2")
    assert "takes no tolerance" in mistake("verify", model, *promote)


def test_a_tolerance_alone_is_kept_by_the_optimal_placement(model):
    plan = json.loads(done("convert", model, "--json", "--tolerance", "0.5"))
    assert (plan["placement"], plan["predicted_error"] is None) == ("optimal", False)
    assert json.loads(done("inspect", model, "--json"))["placement"] == "promote"


def test_an_unknown_op_is_one_line(model):
    assert "plan has no op 'lay'" in mistake("inspect", model, "--explain", "lay")


def test_a_model_that_cannot_be_captured_is_one_line(model):
    line = mistake("inspect", model.replace("build", "BRANCHES"))
    assert "Branches cannot be captured" in line


def test_explain_takes_ops_compounds_and_modules(model):
    assert "class    deny, by groups.normalisation" in done(
        "explain", model, "layer_norm"
    )
    found = json.loads(done("explain", model, "2", "--json"))
    assert found["lines"][0] == "2: 1 f32, 0 casts at run time"
    assert "no module or compound" in mistake("explain", model, "softmax")
