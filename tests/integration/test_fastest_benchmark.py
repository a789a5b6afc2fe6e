"""The benchmark of placement ``fastest`` runs on a small model."""

import json
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import fastest


def test_a_row_has_the_ratio_and_the_plan(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "as before")
    monkeypatch.setenv("AMPREWRITE_PRICES", "default")
    out = tmp_path / "out.json"
    given = ["fastest", "--cases", "mlp, small", "--rounds", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    fastest.main()
    (row,) = json.loads(out.read_text("utf-8"))["rows"].values()
    assert row["time / float32"] > 0
    assert row["candidates"] >= 1
    assert row["chosen"] != "by prices"


def test_two_calls_of_one_function_take_the_same_time() -> None:
    def work() -> int:
        return sum(range(20_000))

    assert fastest.paired(work, work, 9) == pytest.approx(1, abs=0.5)
