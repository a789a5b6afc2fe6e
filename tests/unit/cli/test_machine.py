"""The commands that measure: what they print, and where they write."""

import json

import pytest

from amprewrite import api
from tests.command_line import done, mistake, run


def test_calibrate_prints_ratios_and_names_its_file(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    from amprewrite.frameworks.jaxpr import calibrate as measured

    monkeypatch.setattr(measured, "SIDE", 16)
    monkeypatch.setattr(measured, "ROUNDS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run("calibrate")
    assert result.exit_code == 0
    assert "bfloat16 contractions hand over" in result.stdout
    assert "  to bfloat16 " in result.stdout
    file = tmp_path / "amprewrite" / "contractions.json"
    assert result.stderr == f"wrote {file}\n"
    found = json.loads(done("calibrate", "--json"))
    assert found["ratios"]["float32"] == 1
    kept = json.loads(file.read_text())[found["backend"]]
    assert kept["ratios"] == found["ratios"]
    measured.emits_accumulators.cache_clear()


def test_calibrate_without_jax_is_one_line(monkeypatch):
    monkeypatch.setattr(api, "find_spec", lambda _: None)
    assert "pip install 'amprewrite[jax]'" in mistake("calibrate")
