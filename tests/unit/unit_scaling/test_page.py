"""Scales as HTML: well-formed, escaped, and a page that needs no other file."""

from xml.etree import ElementTree as ET

import pytest

from amprewrite.unit_scaling import tracking
from amprewrite.unit_scaling.tracking import (
    Scale,
    ScaleRow,
    Tracked,
    colour_of,
    html_table,
    page_of,
)

ONE = Scale(1.0, 1.0, 2.0, 0.0)
ROWS = [
    ScaleRow.of(Tracked("<lambda> & co", "m.py:3", (2, 3), ONE, None), None),
    ScaleRow.of(None, Tracked("loss", "", (), ONE, ONE)),
]
HEADS = ("before", "after")


def test_every_row_has_every_column():
    text = html_table(HEADS, ROWS)
    table = ET.fromstring(text[text.index("<table") :])
    widths = [
        sum(int(cell.get("colspan", "1")) for cell in row) for row in table.iter("tr")
    ]
    assert widths == [3 + 4 * 4] * 4
    first = [cell.text for cell in list(table.iter("tr"))[2]]
    assert first[:7] == ["<lambda> & co", "m.py:3", "2 x 3", "1", "1", "2", "0.0%"]


def test_a_page_needs_no_other_file():
    pytest.importorskip("matplotlib")
    text = page_of(HEADS, ROWS)
    assert text.startswith("<!DOCTYPE html>")
    assert "<svg" in text
    assert "&lt;lambda&gt; &amp; co" in text
    assert not any(word in text for word in ("<script", "<link", "src="))


def test_without_matplotlib_a_page_has_the_table_alone(monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    text = page_of(HEADS, ROWS)
    assert "<svg" not in text
    assert html_table(HEADS, ROWS) in text


@pytest.mark.parametrize(
    ("std", "colour"),
    [
        (1.0, "rgb(255,255,255)"),
        (2.0**-16, "rgb(55,55,255)"),
        (2.0**-40, "rgb(55,55,255)"),
        (2.0**8, "rgb(255,155,155)"),
        (0.0, "#ddd"),
        (float("inf"), "#f00"),
        (float("nan"), "#f00"),
    ],
)
def test_a_colour_says_how_far_a_deviation_is_from_1(std, colour):
    assert colour_of(Scale(std, 1.0, 1.0, 0.0)) == colour
