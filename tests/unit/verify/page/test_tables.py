"""Tables and charts of a report for its page."""

from amprewrite.verify.op_errors import OpError

from amprewrite.verify import Report
from amprewrite.verify.page.tables import depth_chart, measured, worst_table


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

    assert titles(LINEAR) == ["share", "own error", "accumulated"]
    assert titles(op_error("a", "float32", None)) == ["own error", "accumulated"]
    assert titles(op_error("a", "float32", None, 3))[-1] == "not finite"
    assert titles() == []


def test_the_worst_op_is_the_first() -> None:
    table = worst_table(a_report(LINEAR, EXP))
    assert [row[0] for row in table.rows] == ["exp", "linear"]
    assert [row[2] for row in table.rows] == [0.75, 0.25]
