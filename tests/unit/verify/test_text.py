from dataclasses import replace

from amprewrite.verify import DiscreteError, GradientError
from amprewrite.verify.text import failure_text
from tests.unit.verify.test_report import BROKEN, OUTPUT, REPORT


def test_a_summary_says_what_was_measured():
    text = REPORT.summary()
    assert str(REPORT) == text
    assert text.startswith("error 0.01 against float64, bound 0.1: ok\n")
    for part in (
        "  autocast: 0.02\n",
        "  cast all: not run (RuntimeError: no kernel)\n",
        "worst of 2 outputs: logits: error 0.01, 40 dB, 0 new non-finite",
        "gradients: error 0.03; worst of 1: weight: 0.03",
        "add (aten.mul, bfloat16) own error 0.3, accumulated 0.2 at a.b, model.py:3",
        "note: a note",
    ):
        assert part in text


def test_a_summary_says_what_is_wrong():
    assert BROKEN.summary().startswith("error inf against float64, bound 0.1: NOT OK")


def test_a_report_of_nothing_has_a_summary():
    empty = replace(REPORT, outputs=(), ops=(), gradients=(), bound=None, notes=())
    assert "outputs" not in empty.summary()


def test_a_failure_says_found_and_wanted_and_where():
    text = failure_text(replace(REPORT, outputs=(OUTPUT,), bound=0.001))
    assert text.startswith("output logits: relative error 0.01; want at most 0.001")
    lines = text.split("\n")
    assert [line.split()[0] for line in lines[1:]] == ["add", "mul", "neg"]
    assert "a.b, model.py:3" in lines[1]


def test_a_failure_names_the_baselines_and_the_jitted_function():
    late = replace(OUTPUT, relative_l2=0.5)
    text = failure_text(replace(REPORT, jitted=(late,)))
    assert text.startswith("output logits of the jitted function: relative error 0.5;")
    assert "(original 1e-07, autocast 0.02)" in text


def test_a_failure_counts_what_is_not_finite():
    text = failure_text(BROKEN)
    assert text.startswith("output state: 3 elements that are finite in the reference")


def test_gradients_that_are_zero_are_told_apart():
    rows = (GradientError("w", 0.03, 0.9), GradientError("b", 0.5, 0.1, zero=True))
    lines = replace(REPORT, gradients=rows).summary().split("\n")
    (line,) = (x for x in lines if x.startswith("gradients:"))
    assert line == "gradients: error 0.03; worst of 2: w: 0.03"
    (line,) = (x for x in lines if "zero but for rounding" in x)
    assert line.endswith("the largest is b: 0.5")


def test_integers_are_told_whether_they_may_differ_or_not():
    row = DiscreteError("n", "int64", 200, 4, 0)
    text = replace(REPORT, discrete=(row,)).summary()
    assert "NOT OK\n  output n (int64): 4 of 200 elements (2.00%) differ" in text
    text = replace(REPORT, discrete=(replace(row, original=4),)).summary()
    assert "in the original itself 4" in text
    assert text.startswith("error 0.01 against float64, bound 0.1: ok")
