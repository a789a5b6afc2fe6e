"""Problems of a sample: failures, drift, and ops that are not finite."""

from dataclasses import replace

from amprewrite.probes import DRIFT, Sample, usual_error
from amprewrite.verify import OpError, Report

REPORT = Report("float64", "bfloat16", 1e-3, None, ())
OP = OpError("exp", "exp", "aten.exp", "up", "a.py:1", "float16", 0.1, 0.1, 3)


def test_a_drift_is_an_error_far_above_the_usual_one():
    assert not Sample(1, 0.1, REPORT).problems
    assert not Sample(2, 0.1, REPORT, usual=1.01e-3 / DRIFT).problems
    (line,) = Sample(2, 0.1, REPORT, usual=0.99e-3 / DRIFT).problems
    assert line.startswith("drift: relative error 0.001, 10.1 times")


def test_ops_that_are_not_finite_are_named():
    report = replace(REPORT, ops=(OP, replace(OP, op="mul")))
    (line,) = Sample(1, 0.1, report).problems
    assert line.startswith("3 elements of exp (aten.exp, float16) at up are not finite")
    assert line.endswith("; 1 ops after it have such values too")


def test_a_failure_is_a_problem_and_counts_no_error():
    failed = Sample(1, 0.1, None, "ValueError: x")
    assert failed.problems == ("not compared: ValueError: x",)
    assert usual_error([failed]) is None
    errors = [replace(REPORT, error=error) for error in (1.0, 2.0, float("inf"))]
    assert usual_error([failed, *(Sample(1, 0.1, r) for r in errors)]) == 1.5
