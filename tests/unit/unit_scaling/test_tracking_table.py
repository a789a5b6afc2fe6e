"""The table of scales as text, and in a file."""

import pytest

from amprewrite.unit_scaling.tracking import Scale, ScaleRow, ScaleTable, Tracked

ONE, TWO = Scale(1.0, 1.0, 2.0, 0.0), Scale(0.5, 2.0, 4.0, 0.25)
TABLE = ScaleTable(
    ("before", "after"),
    (
        ScaleRow.of(
            Tracked("linear", "mlp.up", (3, 4), TWO, TWO),
            Tracked("linear", "", (3, 4), ONE, None),
        ),
        ScaleRow.of(None, Tracked("gelu", "", (3, 4), ONE, ONE)),
    ),
)


def test_the_text_has_values_and_gradients_of_both_runs():
    lines = str(TABLE).splitlines()
    assert lines[0].split() == ["before", "|", "after"]
    half, one = ["0.5", "2", "4", "25.0%"], ["1", "1", "2", "0.0%"]
    found = [line.split() for line in lines[2:]]
    assert found == [
        ["linear", "forward", *half, "|", *one, "mlp.up"],
        ["backward", *half, "|"],
        ["gelu", "forward", "|", *one],
        ["backward", "|", *one],
    ]
    assert len({line.index("|") for line in lines}) == 1


def test_a_row_is_found_by_its_name():
    assert TABLE["gelu"] is TABLE.rows[1]


def test_a_page_is_written(tmp_path):
    TABLE.to_html(tmp_path / "scales.html")
    text = (tmp_path / "scales.html").read_text("utf-8")
    assert TABLE.html() in text
    assert TABLE._repr_html_() == TABLE.html()


def test_the_plot_has_a_point_for_each_scale():
    pytest.importorskip("matplotlib")
    values, gradients = TABLE.plot().get_axes()
    assert list(values.get_lines()[0].get_xdata()) == [0.5]
    assert list(values.get_lines()[1].get_xdata()) == [1.0, 1.0]
    assert list(gradients.get_lines()[1].get_ydata()) == [1]
