from dataclasses import replace

from amprewrite.verify import DiscreteError
from amprewrite.verify.rows import GradientError
from amprewrite.verify.text import number, problems, violations
from tests.unit.verify.test_report import BROKEN, OUTPUT, REPORT


def test_what_is_ok_has_no_problems():
    assert list(problems(REPORT)) == []
    assert violations(REPORT) == ()


def test_the_worst_output_comes_first():
    rows = (replace(OUTPUT, relative_l2=0.2), replace(OUTPUT, name="b", relative_l2=1))
    found = list(problems(replace(REPORT, outputs=rows)))
    assert [line.split(":")[0] for line in found] == ["output b", "output logits"]
    assert "want at most 0.1 against float64" in found[0]


def test_what_is_not_finite_is_a_problem_without_a_bound_too():
    (line,) = problems(replace(BROKEN, bound=None))
    assert line.startswith("output state: 3 elements that are finite in the reference")
    assert "want" not in line


def test_outputs_without_a_finite_element_in_the_reference_are_not_compared():
    lost = replace(OUTPUT, shape=(2, 3), nonfinite=6, nonfinite_reference=6)
    (line,) = problems(replace(REPORT, outputs=(lost,)))
    assert line.startswith("no element of the outputs is finite in float64")
    assert replace(REPORT, outputs=(lost, replace(OUTPUT, name="b"))).ok
    assert replace(REPORT, outputs=()).compared


def test_integers_are_a_problem_where_more_differ_than_in_the_original():
    row = DiscreteError("n", "bool", 10, 2, 2)
    assert list(problems(replace(REPORT, discrete=(row,)))) == []
    (line,) = problems(replace(REPORT, discrete=(replace(row, jitted=3),)))
    assert line.startswith("output n of the jitted function (bool): 3 of 10 elements")


def test_the_worst_gradients_are_named_and_the_others_counted():
    rows = [GradientError(f"w{n}", 0.1 * n, 0.5, bound=0.05) for n in range(8)]
    found = list(problems(replace(REPORT, gradients=tuple(rows))))
    assert [line.split(":")[0] for line in found] == [
        *(f"gradient of w{n}" for n in (7, 6, 5, 4, 3)),
        "2 more gradients are beyond their bounds",
    ]
    (line,) = problems(replace(REPORT, jitted_gradients=tuple(rows[:2])))
    assert line.startswith("gradient of w1: relative error 0.1; want at most 0.05")
    assert line.endswith("(jitted)")
    assert not replace(REPORT, gradients=tuple(rows)).ok


def test_numbers_have_three_digits():
    assert [number(x) for x in (None, 1.23456e-7, 0.0)] == ["", "1.23e-07", "0"]
