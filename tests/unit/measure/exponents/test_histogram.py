"""The histogram of a run: totals, a loss scale, text, tables and files."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from amprewrite.errors import ArgumentError, TargetError
from amprewrite.measure.exponents import ExponentHistogram, Exponents
from amprewrite.measure.exponents.counting import count_exponents, exponents_of
from amprewrite.measure.exponents.plot import plot_exponents
from amprewrite.measure.exponents.table import exponent_tables
from amprewrite.measure.exponents.text import SHOWN
from amprewrite.measure.runs import Observed

FOUND = ExponentHistogram(
    (
        Exponents("w", "weight", "", {-3: 6, -2: 2}, 0, 0, 0.4),
        Exponents("gelu", "activation", "up", {0: 3}, 1, 1, 1.5),
        Exponents("w", "weight gradient", "", {-30: 3, -20: 1}, 4, 0, 1.5 * 2.0**-20),
        Exponents("gelu", "activation gradient", "up", {-27: 1, -22: 1}, 0, 0),
    )
)


def test_totals_and_shares_are_by_kind():
    assert FOUND.totals["weight gradient"].counts == {-30: 3, -20: 1}
    shares = FOUND.share_below("float16")
    assert shares["weight"] == (0, 0, 0)
    assert shares["weight gradient"] == (0.75, 0.25, 0)
    assert shares["activation gradient"] == (0.5, 0.5, 0)
    moved = FOUND.share_below("float16", 2.0**10)
    assert moved["activation gradient"] == (0, 0.5, 0)
    assert moved["weight"] == (0, 0, 0)


@pytest.mark.parametrize(
    ("largest", "format_name", "scale"),
    [
        (1.5 * 2.0**-20, "float16", 2.0**35),  # 1.5 * 2**15 is below 65504
        (65504 * 2.0**-20, "float16", 2.0**19),  # a product must be below the largest
        (2.0**-10, "float16", 2.0**25),
        (1e6, "float16", 2.0**-4),
        (1.75 * 2.0**-3, "float8_e4m3fn", 2.0**10),  # 448 is 1.75 * 2**8
        (1.5 * 2.0**-3, "float8_e4m3fn", 2.0**11),
    ],
)
def test_the_loss_scale_brings_the_largest_gradient_below_the_largest_number(
    largest, format_name, scale
):
    rows = [
        exponents_of(np.array([largest / 7, -largest]), "w", "weight gradient"),
        Exponents("x", "activation", "", {60: 1}, 0, 0),
        Exponents("loss", "activation gradient", "", {60: 1}, 0, 0),
    ]
    assert ExponentHistogram(tuple(rows)).loss_scale(format_name) == scale


def test_a_scalar_counts_where_there_is_nothing_else():
    loss = Exponents("loss", "activation gradient", "", {0: 1}, 0, 0, 1.0)
    assert ExponentHistogram((loss,)).loss_scale() == 2.0**15


def test_without_gradients_there_is_no_loss_scale():
    with pytest.raises(ArgumentError, match="no gradients other than zero"):
        ExponentHistogram(FOUND.tensors[:2]).loss_scale()
    assert "loss scale" not in str(ExponentHistogram(FOUND.tensors[:2]))


def test_a_run_is_counted_in_the_order_of_its_tensors():
    def show(look):
        for name, parameter, gradient in (
            *(("w", True, False), ("a", False, False), ("b", False, False)),
            *(("b", False, True), ("a", False, True), ("w", True, True)),
        ):
            look(Observed(name, "", parameter, gradient, lambda: np.ones(2)))

    rows = count_exponents(show).tensors
    assert [(row.name, row.kind) for row in rows] == [
        *(("w", "weight"), ("a", "activation"), ("b", "activation")),
        ("w", "weight gradient"),
        *(("a", "activation gradient"), ("b", "activation gradient")),
    ]


def test_a_file_holds_the_whole(tmp_path):
    FOUND.save(tmp_path / "found.json")
    again = ExponentHistogram.load(tmp_path / "found.json")
    assert again.to_json() == FOUND.to_json()
    assert again.tensors[:3] == FOUND.tensors[:3]
    assert math.isnan(again.tensors[3].largest)
    json.dumps(FOUND.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON; want a file written by ExponentHistogram.save"),
        ('{"format": 9}', "is no histogram of format 1"),
        ('{"format": 1, "tensors": [{"name": "x"}]}', "not a complete histogram"),
    ],
)
def test_another_file_is_refused(tmp_path, text, message):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(TargetError, match=message):
        ExponentHistogram.load(file)


def test_text_and_tables_say_the_shares_and_the_scale():
    text = str(FOUND)
    assert "activations: 5 numbers in 1 tensors, 20.0% zero, 1 not finite" in text
    assert "f16       75.0% to zero,  25.0% subnormal,   0.0% overflow" in text
    assert "loss scale for float16: 2^35; then 0.0%" in text
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(exponent_tables(FOUND))
    console.print(FOUND)
    shown = console.export_text()
    assert "75.0% / 25.0% / 0.0%" in shown
    assert shown.count("gelu") == 4
    assert "loss scale for float16: 2^35" in shown


def test_the_plot_has_counts_and_ranges():
    pytest.importorskip("matplotlib")
    figure = plot_exponents(FOUND, 2.0**10)
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == [
        *("weights", "activations", "weight gradients", "activation gradients")
    ]
    bars = panels[2].patches
    middles = [round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars]
    assert middles == [-29.5, -19.5, -19.5, -9.5]
    assert [bar.get_height() for bar in bars] == [3, 1, 3, 1]
    assert len(panels[0].patches) == 2
    lines = panels[0].get_lines()
    assert len(lines) == 2 * len(SHOWN)
    assert [list(line.get_xdata()) for line in lines[:2]] == [[-24, -14], [-14, 16]]
    with pytest.raises(ArgumentError, match="power of two"):
        FOUND.plot(scale=1000.0)
