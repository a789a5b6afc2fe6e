"""The benchmark of speed: counts and memory of a call, and other compilers."""

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

from benchmarks import speed, speed_peers, speed_plots
from benchmarks.speed_counts import counts, peak_bytes

X = torch.ones(16, 64)


@pytest.fixture
def case() -> Any:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    return model, (X,), {}


def test_counts_are_those_of_the_casts_of_a_form(case: Any) -> None:
    found = {
        form: counts(speed.form_of(form, "eager", case, "cpu"))
        for form in ("float32", "autocast", "bfloat16()", "promote")
    }
    assert {form: row["casts"] for form, row in found.items()} == {
        "float32": 0,
        "autocast": 5,  # the input, two weights, two biases
        "bfloat16()": 0,
        "promote": 2,  # the input and the output
    }
    assert found["promote"]["ops"] == found["float32"]["ops"] + 2
    assert found["promote"]["op_bytes"] < found["float32"]["op_bytes"]


def test_peak_bytes_are_those_of_the_largest_two_values(case: Any) -> None:
    largest = 2 * 16 * 256 * 4  # of the first product and of its activation
    found = peak_bytes(speed.form_of("float32", "eager", case, "cpu"))
    assert largest <= found < 2 * largest


def test_other_compilers_run_where_they_are_installed(case: Any) -> None:
    def refusing(_case: Any, _device: str) -> Any:
        raise ImportError("no module of this name\nand more")

    def running(given: Any, _device: str) -> Any:
        model, args, _ = given
        return lambda: model(*args)

    peers = {"absent": refusing, "present": running}
    with mock.patch.object(speed_peers, "PEERS", peers):
        runs, left_out = speed_peers.available([*peers], case, "cpu")
    assert list(runs) == ["present, eager"]
    assert left_out == {"absent": "ImportError: no module of this name"}
    assert speed.errors(runs, case)["present, eager"] < 1e-6


def test_what_a_file_has_of_other_modes_stays() -> None:
    rows = {"a, 1x16": {"seconds": {"promote, eager": 1.0}, "error": {"promote": 0.1}}}
    others = {
        "a, 1x16": {"seconds": {"promote, frozen": 2.0}},
        "b, 1x16": {"seconds": {"promote, eager": 3.0}},
    }
    found = speed.added(rows, others)
    assert found["a, 1x16"]["seconds"] == {
        "promote, eager": 1.0,
        "promote, frozen": 2.0,
    }
    assert found["a, 1x16"]["error"] == {"promote": 0.1}
    assert found["b, 1x16"] == others["b, 1x16"]
    assert "promote, frozen" not in rows["a, 1x16"]["seconds"]


def test_gains_are_geometric_means_over_models() -> None:
    rows = {
        "a, 1x16": {"seconds": {"promote, eager": 1.0, "autocast, eager": 2.0}},
        "b, 1x16": {"seconds": {"promote, eager": 1.0, "autocast, eager": 8.0}},
    }
    assert "| eager, 1x16 |  | 4.00 (2.00-8.00) |  |" in speed_plots.gains(rows)
