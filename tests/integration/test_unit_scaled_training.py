"""Training in 8 bits: a unit-scaled model learns without a loss scale."""

import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks import learning_rate_transfer, unit_scaled_training
from benchmarks.unit_scaled_training import Run, Table, head_of, measure, trained
from examples.unit_scaled_gpt import Size

SIZE = Size(width=32, layers=1, heads=2, length=32, batch=8)
STEPS = 40


def loss_of(*run, steps=STEPS):
    return trained(Run(*run), SIZE, steps, 0)


def test_a_unit_scaled_model_learns_in_8_bits_as_in_float32():
    full = loss_of("unit-scaled", "", 0.25)
    low = loss_of("unit-scaled", "simulate e4m3", 0.25)
    assert full["held out"] < 3.0
    assert low["held out"] == pytest.approx(full["held out"], abs=0.05)
    assert low["held out"] != full["held out"]
    assert low["zeros"] < 0.05
    assert len(low["losses"]) == STEPS // unit_scaled_training.BETWEEN


def test_a_plain_model_does_not_once_its_gradients_are_small():
    full = loss_of("plain", "", 2.0**-6)
    low = loss_of("plain", "simulate e4m3/e5m2", 2.0**-6, 2.0**16)
    assert low["zeros"] > 0.99
    assert low["held out"] > full["held out"] + 0.5
    scaled = loss_of("plain", "simulate e4m3/e5m2 current", 2.0**-6, 2.0**16)
    assert scaled["held out"] == pytest.approx(full["held out"], abs=0.05)


def test_runs_that_a_file_has_are_not_repeated(tmp_path, monkeypatch):
    count = 0

    def counted(run, *_):
        nonlocal count
        count += 1
        return {"held out": run.rate, "losses": []}

    monkeypatch.setattr(unit_scaled_training, "trained", counted)
    path, head = tmp_path / "runs.json", head_of(SIZE, STEPS)
    measure(Table(path, head), SIZE, STEPS, 2)
    first, rows = count, json.loads(path.read_text())["rows"]
    assert first == len(rows) == 12 + 7 + 2 + 7
    assert {row["rate"] for row in rows if row["policy"]} == {
        min(rates) for rates in unit_scaled_training.RATES.values()
    }
    measure(Table(path, head), SIZE, STEPS, 2)
    assert count == first
    measure(Table(path, head_of(SIZE, STEPS + 1)), SIZE, STEPS + 1, 1)
    assert count > first
    assert json.loads(path.read_text())["steps"] == STEPS + 1


def test_each_width_is_trained_at_each_rate(tmp_path, monkeypatch):
    def losses(run, size, steps):
        return {"held out": run.rate * size.width, "steps": steps}

    monkeypatch.setattr(learning_rate_transfer, "losses", losses)
    out = tmp_path / "transfer.json"
    options = ["--out", str(out), "--steps", "3", "--widths", "32", "64"]
    monkeypatch.setattr("sys.argv", ["learning_rate_transfer", *options])
    learning_rate_transfer.main()
    found = json.loads(out.read_text())
    assert (found["steps"], found["head"], len(found["rows"])) == (3, 16, 28)
    assert learning_rate_transfer.size_of(64).heads == 4


def test_a_run_of_the_transfer_trains():
    found = learning_rate_transfer.losses(Run("plain", "", 2.0**-6), SIZE, 3)
    assert set(found) == {"losses", "held out", "seconds"}
    assert 2 < found["held out"] < 6


@pytest.mark.parametrize("name", ["learning_rate_transfer", "unit_scaled_training"])
def test_what_is_kept_is_drawn(name):
    pytest.importorskip("matplotlib")
    from benchmarks import unit_scaled_plots as plots

    found = json.loads((plots.RESULTS / f"{name}.json").read_text("utf-8"))
    panels = getattr(plots, name)(found).get_axes()
    assert len(panels) == 2
    assert all(len(axes.get_lines()) >= 4 for axes in panels)
