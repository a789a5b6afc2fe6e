"""The measurements for a CUDA device, rehearsed on the CPU: same code, tiny models."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("optax")
pytest.importorskip("transformers")

from benchmarks.gpu.__main__ import STEPS
from benchmarks.gpu.table import Table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu")
    done = run(str(folder), "--rehearse")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


@pytest.mark.slow
def test_every_step_ends_and_saves_its_rows(rehearsed: dict[str, Any]) -> None:
    assert list(rehearsed["steps"]["steps"]) == list(STEPS)
    assert all(row["exit"] == 0 for row in rehearsed["steps"]["steps"].values())
    for name in STEPS.keys() - {"tests"}:
        found = rehearsed[name]
        assert found["what"]
        assert {"python", "torch", "jax", "gpu"} <= found["machine"].keys()
        assert found["rows"]
        for row in found["rows"].values():
            assert "failed" not in json.dumps(row), row
            assert "skipped" not in row


@pytest.mark.slow
def test_the_figures_are_there(rehearsed: dict[str, Any]) -> None:
    errors = rehearsed["errors"]["rows"]["bert, bf16"]
    assert 0 < errors["promote"] < 2e-2
    assert errors["ratio"]["promote"] == errors["promote"] / errors["autocast"]
    speed = rehearsed["speed"]["rows"]["bert-base, bf16, eager, batch full"]
    assert speed["ratio"]["autocast"] == 1
    assert speed["promote"]["launched"] > 0
    assert speed["promote"]["parameter bytes"] < speed["autocast"]["parameter bytes"]
    training = rehearsed["training"]["rows"]["gpt2, bf16, eager"]
    ours, theirs = training["promote"]["losses"], training["float32"]["losses"]
    assert all(abs(a - b) < 1e-2 * b for a, b in zip(ours, theirs, strict=True))
    decoded = rehearsed["generation"]["rows"]["llama-1b, bf16, batch 1"]
    assert decoded["float32"]["same"] == 1
    step = rehearsed["jax"]["rows"]["bf16"]
    assert step["temporary bytes"] > 0
    assert step["converts"] > 0


def test_a_row_that_fails_costs_itself_alone(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.json", "numbers", 60)

    def broken() -> object:
        msg = "no memory"
        raise MemoryError(msg)

    assert table.row("one", lambda: 1) == 1
    assert table.row("two", broken) is None
    assert table.row("three", lambda: 3) == 3
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert rows == {"one": 1, "two": {"failed": "MemoryError: no memory"}, "three": 3}


def test_a_row_without_time_is_skipped_and_says_so(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.json", "numbers", 60)
    assert table.row("long", lambda: 1, needs=100) is None
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert rows["long"]["skipped"].endswith("s were left")
    ended = Table(tmp_path / "u.json", "numbers", 0)
    assert ended.row("any", lambda: 1) is None


def test_a_step_that_there_is_not_is_named(tmp_path: Path) -> None:
    done = run(str(tmp_path), "--steps", "errors,sped")
    assert done.returncode == 2
    assert "no steps sped; want tests, errors, speed" in done.stderr


def test_without_a_folder_the_use_is_shown() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stderr.startswith("usage: benchmarks/gpu.sh OUT")
