"""The demo's figures as text, from figures that were made up."""

import io
import json

import pytest

pytest.importorskip("torch")

from rich.console import Console

from amprewrite.demo.measure import Errors, Neighbours, Swap, Timing
from amprewrite.demo.run import AUTOCAST, FULL, OURS, Figures
from amprewrite.demo.show import neighbours_text, show
from amprewrite.plan import Decision, Plan
from amprewrite.verify import Report

VARIANTS = (FULL, AUTOCAST, OURS)


def figures(load=None):
    decision = Decision("a", "linear", "", "allow", "bfloat16", "", "", path="bert")
    swaps = tuple(Swap(0, 1, other, 0.001 * other) for other in range(5, 1, -1))
    return Figures(
        machine="machine",
        load=load,
        plan=Plan("bf16", "promote", "bfloat16", "float32", "", (decision,), ()),
        report=Report("float64", "bfloat16", 0.25, 0.5, ()),
        errors={n: Errors(0.1, 0.2, 0.9, "float32") for n in VARIANTS},
        neighbours={n: Neighbours(35, 36, swaps, 900) for n in VARIANTS},
        parameter_bytes=dict.fromkeys(VARIANTS, 2_000_000),
        timings=(Timing(1, 16, {FULL: [2.0], AUTOCAST: [4.0], OURS: [1.0]}),),
    )


def text_of(parts):
    console = Console(file=io.StringIO(), width=200, record=True)
    for part in parts:
        console.print(part)
    return console.export_text()


def test_everything_is_shown():
    text = text_of(show(figures()))
    for part in (
        "machine",
        "error 0.25 against float64, bound 0.5: ok",
        "2.0 MB",
        "35 of 36",
        "4 of 900",
        "2.00x",
        "4.00x",
    ):
        assert part in text


def test_a_busy_machine_is_said():
    assert "The machine was busy (load 3.0" in text_of(show(figures(3.0)))
    assert "busy" not in text_of(show(figures(1.0)))


def test_only_the_widest_swaps_are_named():
    text = str(neighbours_text(figures().neighbours[OURS]))
    assert text.count("now comes before") == 3
    assert "5.0e-03 apart" in text
    assert "2.0e-03 apart" not in text


def test_no_swap_is_said_too():
    text = str(neighbours_text(Neighbours(36, 36, (), 900)))
    assert "Nothing in the whole order" in text


def test_figures_are_json():
    found = json.loads(json.dumps(figures().to_json()))
    timing = found["timings"][0]
    assert timing["speedup_over_float32"][OURS] == 2
    assert timing["speedup_over_autocast"][OURS] == 4
    assert found["neighbours"][OURS]["swaps"][0]["margin"] == 0.005
