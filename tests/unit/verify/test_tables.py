"""Tables and charts of a report for its page."""

from dataclasses import replace
from math import inf

from amprewrite.verify import Blame, Blamed, Report
from amprewrite.verify.page import (
    blame_table,
    depth_chart,
    measured,
    worst_table,
)
from amprewrite.verify.rows import OpError


def op_error(name: str, precision: str, share: float | None, lost: int = 0) -> OpError:
    return OpError(
        name, name, f"aten.{name}", "body", "model.py:3", precision, 0.5, 0.25, lost,
        share=share,
    )  # fmt: skip


def a_report(*ops: OpError) -> Report:
    return Report("float64", "bfloat16", 0.25, 0.5, (), ops=ops)


LINEAR, EXP = op_error("linear", "bfloat16", 0.25), op_error("exp", "float32", 0.75)


def test_points_of_the_chart_have_the_colour_of_their_precision() -> None:
    (chart,) = depth_chart(a_report(LINEAR, EXP))
    assert chart.names == ("linear", "exp")
    assert [(line.dtype, line.values) for line in chart.lines] == [
        ("", (0.25, 0.25)),
        ("bfloat16", (0.5, None)),
        ("float32", (None, 0.5)),
    ]


def test_columns_are_those_that_are_known() -> None:
    def titles(*ops: OpError) -> list[str]:
        return [column.title for column, _ in measured(a_report(*ops))]

    always = ["own error", "accumulated", "jump", "headroom", "underflow"]
    assert titles(LINEAR) == ["share", *always]
    assert titles(op_error("a", "float32", None)) == always
    assert titles(op_error("a", "float32", None, 3))[-1] == "not finite"
    assert titles() == []


def test_the_worst_op_is_the_first() -> None:
    table = worst_table(a_report(LINEAR, EXP))
    assert [row[0] for row in table.rows] == ["exp", "linear"]
    assert [row[2] for row in table.rows] == [0.75, 0.25]


def test_ranges_are_columns_that_sort() -> None:
    found = {
        "half": replace(LINEAR, op="half", arrived=0.1, headroom=2.7, underflow=0.5),
        "lost": replace(LINEAR, op="lost", arrived=inf, headroom=-inf),
        "none": replace(LINEAR, op="none", headroom=None),
    }
    columns = {c.title: cells for c, cells in measured(a_report(*found.values()))}
    assert columns["jump"]["half"] == 0.25 - 0.1
    assert columns["headroom"] == {"half": 2, "lost": None, "none": None}
    assert columns["underflow"]["half"] == 0.5


def test_blame_says_how_it_is_known() -> None:
    entry = Blamed("a", "a", "aten.a", "m", "x.py:1", "bfloat16", 0.5, None, 0.1, 64)
    table = blame_table(Blame((entry,), 0.2, runs=4, ops=9))
    assert table.rows == (("a", "m", 0.5, 0.1, 64, "bfloat16", "x.py:1", ""),)
    assert "measured in 4 runs" in table.lead
    assert "predicted" in blame_table(Blame((entry,), 0.2)).lead
