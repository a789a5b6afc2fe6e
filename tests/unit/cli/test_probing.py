"""Exponents are shown, written, drawn, and put on a page."""

import json

import pytest

from amprewrite.measure.exponents import ExponentHistogram
from tests.command_line import done, mistake, run


def test_the_shares_of_a_run_are_shown(model):
    assert "float16" in done("histogram", model)


def test_gradients_are_counted_unless_not_wanted(model):
    kinds = {
        row["kind"] for row in json.loads(done("histogram", model, "--json"))["tensors"]
    }
    assert kinds == {"weight", "activation", "weight gradient", "activation gradient"}
    few = json.loads(done("histogram", model, "--json", "--no-gradients"))["tensors"]
    assert {row["kind"] for row in few} == {"weight", "activation"}


def test_the_counts_are_written_and_drawn(model, tmp_path):
    pytest.importorskip("matplotlib")
    data, plot, page = (tmp_path / f"h{kind}" for kind in (".json", ".svg", ".html"))
    result = run("histogram", model, "--output", data, "--html", page)
    assert result.exit_code == 0, result.stderr
    assert ExponentHistogram.load(data).of("weight")
    assert f"wrote {page}: the plan, and " in result.stderr
    assert "<html" in page.read_text("utf-8")
    done("histogram", model, "--output", plot)
    assert "<svg" in plot.read_text()


def test_another_suffix_is_one_line(model):
    assert "want a name that ends in .json or .svg" in mistake(
        "histogram", model, "--output", "h.txt"
    )
