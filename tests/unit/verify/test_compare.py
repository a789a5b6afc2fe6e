"""With a framework made of numbers: what is measured is given."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from amprewrite.errors import ToleranceError, UnsupportedError, VerifyError
from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call, Measured, OpSample, Run, Walked
from amprewrite.plan import Decision, Plan
from amprewrite.plan.sensitivity import Sensitivity
from amprewrite.verify import Report
from amprewrite.verify.bounds import MULTIPLE, NOISE
from amprewrite.verify.compare import verify

CALL = Call((), {})
DECISION = Decision("mul", "mul", "aten.mul", "allow", "bfloat16", "", "")
PLAN = Plan("p", "promote", "bfloat16", "float32", "", (DECISION,), ())
SAMPLE = OpSample(
    "mul", (np.ones(2),), (np.full(2, 1.5),), (np.full(2, 1.25),), exact=False
)


def run(**outputs):
    """A run with these float outputs."""
    arrays = {name: np.array(values, float) for name, values in outputs.items()}
    return Run(arrays, dict.fromkeys(arrays, "float32"))


@dataclass
class Numbers:
    """Hands out what it holds."""

    measured: Measured
    walked: Walked = field(default_factory=lambda: Walked("float64"))
    calls: list[str] = field(default_factory=list[str])
    sample: OpSample = SAMPLE

    def measure(self, original, converted, call, steps=None):
        del original, converted, call
        assert steps is not None
        found = self.measured
        return replace(found, walked=steps(found.plan, found.reference))

    def ablation(self, original, converted, call):
        del original, converted, call
        return "no ops are restored"

    def walk(self, original, converted, call, observe):
        del original, converted
        self.calls.append(call.reference)
        observe(self.sample)
        return self.walked


def measured(converted, reference, **runs):
    every = {CONVERTED: converted, REFERENCE: reference, **runs}
    return Measured("float64", every, plan=PLAN, low="bfloat16", notes=("n",))


def report_of(given, rtol=None, **options):
    return verify(Numbers(given, **options), None, None, CALL, rtol)


def test_errors_are_against_the_reference():
    given = measured(
        run(a=[1.5, 1], b=[2]), run(a=[1, 1], b=[1]), original=run(a=[1, 1], b=[1.25])
    )
    report = report_of(given)
    assert [o.name for o in report.outputs] == ["a", "b"]
    assert report.outputs[1].relative_l2 == 1
    assert report.error == pytest.approx(((0.25 + 1) / 3) ** 0.5)
    assert report.baselines == {"original": pytest.approx(0.25 / 3**0.5)}
    assert (report.reference, report.low, report.notes) == (
        "float64",
        "bfloat16",
        ("n",),
    )


def test_ops_are_those_of_the_walk():
    report = report_of(measured(run(a=1), run(a=1)))
    assert [(op.op, op.own, op.accumulated) for op in report.ops] == [
        ("mul", 0.25, 0.5)
    ]


def test_a_walk_that_broke_off_gives_no_ops():
    walked = Walked(notes=("no walk",))
    report = report_of(measured(run(a=1), run(a=1)), walked=walked)
    assert report.ops == ()
    assert report.notes == ("n", "no walk")


def test_the_walk_has_the_reference_of_the_runs():
    side = Numbers(replace(measured(run(a=1), run(a=1)), reference="float32"))
    verify(side, None, None, CALL)
    assert side.calls == ["float32"]


def test_without_rtol_the_bound_is_what_may_be_expected():
    found = report_of(measured(run(a=1), run(a=1))).bound
    assert found is not None
    assert 0.01 < found < 0.1


VALUES = {"x": Value("x", "float32", (2,), "input"), "y": Value("y", "float32", (2,))}
GRAPH = ProgramGraph(VALUES, (Op("mul", "mul", "aten.mul", ("x",), ("y",)),), ("y",))
LOWERED = replace(
    PLAN,
    decisions=(replace(DECISION, operands=("bfloat16",), results=("float32",)),),
)


def test_the_bound_is_a_multiple_of_the_predicted_error():
    given = replace(measured(run(a=1), run(a=1), autocast=run(a=1.005)), plan=LOWERED)
    known = Sensitivity({}, {("x", "mul"): 1e-6}, 4)
    walked = Walked("float64", GRAPH, (), known)
    report = report_of(given, walked=walked)
    assert report.predicted == pytest.approx(1e-3)
    assert report.bound == pytest.approx(MULTIPLE * 1e-3)
    assert [op.share for op in report.ops] == [1.0]
    without = report_of(given)
    assert (without.predicted, without.ops[0].share) == (None, None)
    assert without.bound == pytest.approx(MULTIPLE * 0.005)


def test_an_op_that_is_not_the_original_s_is_a_violation():
    wrong = replace(
        SAMPLE, same=(np.ones(2),), again=lambda _unit, _draw: (np.ones(2),)
    )
    side = Numbers(measured(run(a=1), run(a=1)), sample=wrong)
    report = verify(side, None, None, CALL)
    assert not report.ok
    assert report.problems[0].startswith("op mul (aten.mul, bfloat16): differs from")
    assert report.ops[0].is_fault


def test_nobody_is_asked_to_be_better_than_the_original():
    given = measured(run(a=1.5), run(a=1), original=run(a=1.5))
    report = report_of(given)
    assert report.bound == NOISE * 0.5
    assert report.ok
    assert report_of(given, rtol=0.5).bound == 0.5


@pytest.mark.parametrize("found", [1.2, np.nan, np.inf])
def test_beyond_rtol_it_raises_with_the_report(found):
    given = measured(run(a=1, b=found), run(a=1, b=1))
    with pytest.raises(VerifyError, match=r"output b: .* want at most 0\.1") as raised:
        report_of(given, rtol=0.1)
    report = raised.value.report
    assert isinstance(report, Report)
    assert [x.name for x in report.violations] == ["b"]
    assert "mul (aten.mul, bfloat16)" in str(raised.value)
    assert not report_of(given).ok


@pytest.mark.parametrize("rtol", [float("nan"), -1, "1e-3", True])
def test_a_bound_that_is_none_is_refused(rtol):
    with pytest.raises(ToleranceError, match=r"rtol is .*; want a relative error"):
        report_of(measured(run(a=1.05), run(a=1)), rtol=rtol)


def test_within_rtol_it_does_not():
    assert report_of(measured(run(a=1.05), run(a=1)), rtol=0.1).ok


@pytest.mark.parametrize("found", [run(b=1), run(a=[1, 1]), run(a=1, c=1), run()])
def test_another_structure_is_refused(found):
    with pytest.raises(VerifyError, match="want the same structure") as raised:
        report_of(measured(found, run(a=1)))
    assert raised.value.report is None


def test_a_jitted_run_is_compared_too():
    given = measured(run(a=[1]), run(a=[1]), **{JITTED: run(a=[1.5])})
    report = report_of(given)
    assert report.outputs[0].relative_l2 == 0
    assert report.jitted[0].relative_l2 == 0.5
    assert report.baselines == {JITTED: 0.5}
    with pytest.raises(VerifyError, match="of the jitted function"):
        report_of(given, rtol=0.1)
    other = measured(run(a=[1]), run(a=[1]), **{JITTED: run(a=[1, 2])})
    with pytest.raises(VerifyError, match="want the same structure"):
        report_of(other)


def test_integers_that_differ_are_a_violation():
    one, two = (
        replace(run(), others={"n": np.array(values)}) for values in ([1, 2], [1, 3])
    )
    report = report_of(measured(one, two))
    assert not report.ok
    assert "output n (int64): 1 of 2 elements (50.00%) differ" in report.problems[0]
    assert report.to_json()["ok"] is False
    with pytest.raises(VerifyError, match=r"output n .*1 of 2 elements"):
        report_of(measured(one, two), rtol=1.0)
    assert report_of(measured(one, one)).ok


def test_integers_may_differ_where_they_do_in_the_original_itself():
    found, exact, worse = (
        replace(run(), others={"n": np.array(values)})
        for values in ([1, 2], [1, 3], [2, 4])
    )
    assert report_of(measured(found, exact, original=found), rtol=1e-6).ok
    assert not report_of(measured(worse, exact, original=found)).ok
    jitted = measured(exact, exact, **{JITTED: found})
    assert "of the jitted function" in report_of(jitted).problems[0]


def test_the_tolerance_of_the_plan_is_the_bound():
    far, near = run(a=[1.0, 1.1], b=[1.0]), run(a=[1.0, 1.01], b=[1.0])
    exact = run(a=[1.0, 1.0], b=[1.0])
    jointly = replace(PLAN, tolerance=0.01)
    report = report_of(replace(measured(near, exact), plan=jointly))
    assert (report.bound, report.together, report.ok) == (0.01, True, True)
    wrong = report_of(replace(measured(far, exact), plan=jointly))
    assert wrong.problems[0].startswith("all outputs of converted together: relative")
    jitted = measured(near, exact, **{JITTED: far})
    assert "jitted" in report_of(replace(jitted, plan=jointly)).problems[0]
    each = replace(PLAN, tolerances=(("a", 1e-3), ("b", 1.0)))
    (problem,) = report_of(replace(measured(near, exact), plan=each)).problems
    assert problem.startswith("output a: relative error")
    assert report_of(replace(measured(far, exact), plan=jointly), rtol=0.1).ok


def test_gradients_are_compared_by_parameter():
    one, two = (
        replace(run(a=1), gradients={"w": np.array(values), "z": np.zeros(1)})
        for values in ([1.0, 0.0], [0.0, 1.0])
    )
    report = report_of(measured(one, two, original=two))
    by_name = {gradient.name: gradient for gradient in report.gradients}
    assert by_name["w"].relative_l2 == pytest.approx(2**0.5)
    assert by_name["w"].cosine == 0
    assert by_name["z"].relative_l2 == 0
    assert report.gradient_baselines == {
        "converted": pytest.approx(2**0.5),
        ORIGINAL: 0,
    }


def test_an_unknown_reference_is_refused():
    with pytest.raises(UnsupportedError, match="unknown reference 'float16'"):
        verify(
            Numbers(measured(run(), run())),
            None,
            None,
            replace(CALL, reference="float16"),
        )
