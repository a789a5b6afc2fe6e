"""A plan of another program, mode, dtype or policy is refused at convert: torch."""

import pytest

torch = pytest.importorskip("torch")

import warnings
from dataclasses import replace

from torch import nn

import amprewrite
from amprewrite.errors import PlanMismatchError
from tests.torch_programs import Program


def a_model():
    parts = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}
    return Program(lambda m, x: torch.softmax(m.b(m.a(x)), -1), **parts).eval()


X = (torch.ones(2, 8),)


def slow(run, *args, **kwargs):
    """Run without the warning that float16 is slow on a CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", amprewrite.errors.AmpWarning)
        return run(*args, **kwargs)


def refusal(model, plan, args=X, policy=None, **given):
    with pytest.raises(PlanMismatchError) as caught:
        amprewrite.convert(model, policy, args=args, plan=plan, **given)
    return str(caught.value)


def test_a_plan_of_another_dtype_is_refused():
    plan = amprewrite.inspect(a_model(), args=X)
    message = refusal(a_model().double(), plan, (X[0].double(),))
    assert "first at linear, where the program has\n" in message
    assert "float64 2d parameter" in message
    assert "float32 2d parameter" in message


def test_an_eval_plan_is_refused_by_a_model_that_trains():
    plan = amprewrite.inspect(a_model(), args=X)
    assert "was made for a model for inference" in refusal(a_model().train(), plan)
    assert "was made for a model to be trained" in refusal(
        a_model(), amprewrite.inspect(a_model().train(), args=X)
    )
    frozen = refusal(a_model().train(), plan, training=False)
    assert "in eval mode, and this one is in train mode" in frozen


def test_a_plan_fits_other_batches_and_weights():
    plan = amprewrite.inspect(a_model(), args=X)
    model = a_model()
    many = torch.randn(5, 8)
    converted = amprewrite.convert(model, args=(many,), plan=plan)
    assert converted.plan == plan
    fresh = amprewrite.convert(model, args=(many,))
    torch.testing.assert_close(converted(many), fresh(many), rtol=0, atol=0)


def test_another_policy_is_refused_and_none_is_the_plans():
    plan = amprewrite.inspect(a_model(), "fp16", args=X)
    assert "made by policy 'fp16'" in refusal(a_model(), plan, policy="bf16")
    converted = slow(amprewrite.convert, a_model(), args=X, plan=plan)
    assert converted.plan.low == "float16"


def test_the_other_mode_is_planned_by_the_plans_policy_and_overrides():
    rule = {"path": "a", "class": "deny"}
    plan = amprewrite.inspect(a_model().train(), "fp16", args=X, overrides=[rule])
    converted = slow(amprewrite.convert, a_model().train(), args=X, plan=plan)
    slow(converted.eval(), *X)
    found = converted.plan
    assert (found.low, found.mode, len(found.lowered)) == ("float16", "eval", 1)


def test_one_edited_field_is_a_named_mistake():
    plan = amprewrite.inspect(a_model(), args=X)
    rows = list(plan.decisions)
    rows[0] = replace(rows[0], op_class="deny", precision="float32")
    message = refusal(a_model(), replace(plan, decisions=tuple(rows)))
    assert "decision of linear: computes in float32 and reads bfloat16" in message
    assert "give a rule in overrides= to amprewrite.inspect" in message


def test_an_edit_that_is_thought_through_is_applied():
    """A cast of an input saturates: its program says so."""
    plan = amprewrite.inspect(a_model(), args=X)
    casts = [
        replace(c, saturate=c.to_dtype == plan.low and not c.folded) for c in plan.casts
    ]
    edited = replace(plan, casts=tuple(casts))
    converted = amprewrite.convert(a_model(), args=X, plan=edited)
    assert converted.plan == edited
    assert "clamp" in str(converted.rewritten.graph)


def test_the_old_format_is_refused_with_what_to_do(tmp_path):
    plan = amprewrite.inspect(a_model(), args=X)
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"format": 2', '"format": 1'))
    with pytest.raises(
        PlanMismatchError, match=r"format 2 \(found format 1\); make it"
    ):
        amprewrite.Plan.load(tmp_path / "plan.json")
