"""Blame and fix of torch models: restored ops are what a conversion keeps full."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning, ArgumentError, UnsupportedError, VerifyError
from amprewrite.verify import Report
from amprewrite.verify.blame import Effects, Left, limit
from benchmarks import planted_faults


class Block(nn.Module):
    """A residual branch with a sum of a low and a full value."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))).sigmoid()


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(32, 4)).eval()
    args = (torch.randn(16, 32),)
    converted = amprewrite.convert(model, args=args)
    return model, args, amprewrite.verify(model, converted, args)


def effects_of(report):
    assert report.live is not None
    return Effects(report.live, Left(report.error))


def test_with_no_op_restored_it_is_the_converted_model_and_with_all_the_original(case):
    _, _, report = case
    effects = effects_of(report)
    ablation = report.live.ablation
    bare = ablation.run(()).outputs["output"]
    with torch.no_grad():
        wanted = report.live.converted(*report.live.call.args)
    assert (bare == wanted.double().numpy()).all()
    left = effects.left(ablation.restorable).error
    assert left == pytest.approx(report.baselines["original"], rel=0.2)


def test_fix_reaches_in_a_conversion_what_it_measured(case):
    model, args, report = case
    found = report.fix(report.error / 2)
    assert 0 < len(found.ops) < found.lowered
    better = amprewrite.convert(model, args=args, overrides=found.overrides)
    after = amprewrite.verify(model, better, args)
    assert after.error <= 1.1 * found.error <= 1.1 * found.target
    assert after.live is not None
    assert {after.live.ablation.plan.by_op[op].precision for op in found.ops} == {
        "float32"
    }


def test_blame_measures_what_the_prediction_says(case):
    _, _, report = case
    found = report.blame(3)
    assert len(found) == 3
    assert found.runs <= 3 + 5
    first = found[0]
    assert first.op == report.worst(1)[0].op
    assert first.share == pytest.approx(report.worst(1)[0].share, abs=0.2)
    assert first.error < report.error
    assert first.bytes > 0
    assert first.seconds is not None
    assert not any(entry.fault for entry in found)


def test_a_loaded_report_blames_by_its_rows_and_fixes_nothing(case):
    _, _, report = case
    loaded = Report.from_json(report.to_json())
    assert loaded == report
    assert loaded.live is copy.deepcopy(report).live is None
    assert pickle.loads(pickle.dumps(report)).live is None
    found = loaded.blame(2)
    assert not found.measured
    assert found[0].op == report.worst(1)[0].op
    with pytest.raises(UnsupportedError, match="this report was read from data"):
        loaded.fix(1e-3)
    with pytest.raises(ArgumentError, match="top=0: want the number of ops"):
        report.blame(0)


def test_a_model_without_a_plan_says_what_to_verify(case):
    model, args, _ = case
    report = amprewrite.verify(model, model, args)
    for ask in (report.blame, lambda: report.fix(1e-3)):
        with pytest.raises(UnsupportedError, match="Sequential has no graph") as caught:
            ask()
        assert "amprewrite.convert(model, args=args)" in str(caught.value)


def test_the_error_of_verify_leads_to_blame(case):
    model, args, report = case
    with pytest.raises(VerifyError, match=r"error\.report\.blame\(\)") as caught:
        amprewrite.verify(model, report.live.converted, args, rtol=1e-6)
    found: Any = caught.value.report
    assert found.blame(1)[0].share > 0


def test_a_network_with_activations_in_place_is_fixed():
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
    model = nn.Sequential(*parts, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4))
    args = (torch.randn(2, 3, 8, 8),)
    converted = amprewrite.convert(model.eval(), args=args)
    report = amprewrite.verify(model, converted, args)
    found = report.fix(report.error * 0.6)
    assert 0 < len(found.ops) < found.lowered
    better = amprewrite.convert(model, args=args, overrides=found.overrides)
    after = amprewrite.verify(model, better, args)
    assert after.error <= 1.1 * found.error <= 1.1 * found.target


@pytest.mark.parametrize(
    ("model", "change", "op"),
    [
        ("mlp", "scale", "linear_2"),
        ("convnet", "cast", "to_dtype"),
        ("encoder", "nan", "gelu"),
        ("autoencoder", "lost float", "exp"),
    ],
)
def test_a_planted_fault_is_first(model, change, op):
    fault = planted_faults.Fault("torch", model, change, 1.03, 0)
    _, found = planted_faults.verified(fault, op)
    assert found[0].op == op
    assert found[0].fault
    assert found.runs <= limit(found.ops)


def test_an_overflow_is_first():
    fault = planted_faults.Fault("torch", "decoder", "overflow", 2.0**16, 0)
    with pytest.warns(AmpWarning, match="not finite in float16"):
        report, found = planted_faults.verified(fault, "")
    assert found[0].op == planted_faults.overflowing(report)
    assert "values that are not finite" in found[0].fault
    fixed = report.fix(1e-2)
    assert found[0].op in fixed.ops
    assert fixed.error <= 1e-2


def test_a_sound_model_is_not_blamed_for_a_fault():
    assert planted_faults.sound("torch", "graph")["faults"] == []
