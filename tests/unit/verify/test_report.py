import json
from dataclasses import replace
from math import inf, nan

import pytest

from amprewrite.errors import VerifyError
from amprewrite.verify import GradientError, OpError, OutputError, Report

OUTPUT = OutputError(
    name="logits",
    dtype="float32",
    shape=(2, 3),
    relative_l2=0.01,
    max_abs=0.1,
    max_rel=0.02,
    sqnr_db=40.0,
    cosine=0.9999,
    argmax_agreement=1.0,
    nonfinite_reference=0,
    nonfinite=0,
    nonfinite_new=0,
)
OP = OpError("mul", "mul", "aten.mul", "a.b", "model.py:3", "bfloat16", 0.1, 0.2, 0)
REPORT = Report(
    reference="float64",
    low="bfloat16",
    error=0.01,
    bound=0.1,
    outputs=(OUTPUT, replace(OUTPUT, name="state", argmax_agreement=None)),
    baselines={"original": 1e-7, "autocast": 0.02},
    failures={"cast all": "RuntimeError: no kernel"},
    ops=(OP, replace(OP, op="add", own=0.3), replace(OP, op="neg", own=0.0)),
    gradients=(GradientError("weight", 0.03, 0.99),),
    gradient_baselines={"converted": 0.03},
    notes=("a note",),
)
BROKEN = replace(
    REPORT,
    error=inf,
    outputs=(OUTPUT, replace(OUTPUT, name="state", relative_l2=inf, nonfinite_new=3)),
    gradients=(GradientError("weight", -inf, 0.5),),
)


@pytest.mark.parametrize("report", [REPORT, BROKEN])
def test_json_gives_the_same_report(report, tmp_path):
    text = json.dumps(report.to_json(), allow_nan=False)
    assert Report.from_json(json.loads(text)) == report
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


def test_json_keeps_nan():
    report = replace(REPORT, outputs=(replace(OUTPUT, cosine=nan),))
    back = Report.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False)))
    assert str(back.outputs[0].cosine) == "nan"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "report: is no report of format 2"),
        ({"format": 0}, "is no report of format 2"),
        ({"format": 2}, "not a complete report"),
        ({**REPORT.to_json(), "ops": [{"op": "mul"}]}, "not a complete report"),
        ({**REPORT.to_json(), "error": "much"}, "not a complete report"),
    ],
)
def test_other_data_is_refused(data, said):
    with pytest.raises(VerifyError, match=said):
        Report.from_json(data)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("no", "utf-8")
    with pytest.raises(VerifyError, match="is no JSON"):
        Report.load(path)


def test_json_says_whether_it_is_ok():
    assert REPORT.to_json()["ok"] is True
    assert BROKEN.to_json()["ok"] is False


def test_a_bound_is_on_each_output_on_one_or_on_all():
    assert REPORT.bound_of(OUTPUT) == REPORT.limit == 0.1
    assert replace(REPORT, bound=None).bound_of(OUTPUT) == inf
    assert replace(REPORT, bounds={"logits": 1.0}).bound_of(OUTPUT) == 1.0
    assert replace(REPORT, together=True).bound_of(OUTPUT) == inf


def test_ok_is_about_every_output():
    assert REPORT.ok
    assert not replace(REPORT, bound=0.001).ok
    assert replace(REPORT, bound=None).ok
    assert not replace(BROKEN, bound=None).ok
    assert [x.name for x in BROKEN.violations] == ["state"]


def test_the_jitted_function_must_be_ok_too():
    late = replace(OUTPUT, relative_l2=0.5)
    report = replace(REPORT, jitted=(late,))
    assert not report.ok
    assert report.violations == (late,)
    assert Report.from_json(report.to_json()) == report


def test_worst_names_the_largest_own_errors():
    assert [op.op for op in REPORT.worst(2)] == ["add", "mul"]
