"""What was measured is kept by backend; a broken file is left out with a warning."""

import json
import re

import pytest

pytest.importorskip("jax")

from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.frameworks.jaxpr import calibrate
from amprewrite.frameworks.jaxpr.calibrate import (
    DEFAULTS,
    cache_file,
    emits_accumulators,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder for the cache, small matrices, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "SIDE", 8)
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    emits_accumulators.cache_clear()
    yield tmp_path
    emits_accumulators.cache_clear()


def keep(text):
    cache_file().parent.mkdir(parents=True, exist_ok=True)
    cache_file().write_text(text)


def test_the_file_is_in_the_users_cache(cache, monkeypatch):
    assert cache_file() == cache / "amprewrite" / "contractions.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(cache))
    assert cache_file() == cache / ".cache" / "amprewrite" / "contractions.json"


def test_without_a_file_there_are_defaults():
    assert {name: emits_accumulators(name) for name in DEFAULTS} == DEFAULTS
    assert not emits_accumulators("a new machine")


def test_what_was_measured_is_used_and_others_are_kept():
    keep(json.dumps({"gpu": {"emits_accumulators": True}}))
    found = calibrate.calibrate()
    assert set(found["ratios"]) == {"float32", "to float32", "to bfloat16"}
    assert found["file"] == str(cache_file())
    kept = json.loads(cache_file().read_text())
    assert set(kept) == {"gpu", found["backend"]}
    assert emits_accumulators(found["backend"]) == found["emits_accumulators"]
    assert emits_accumulators("gpu")
    assert [path.name for path in cache_file().parent.iterdir()] == [cache_file().name]


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"cpu": 3}', "\ud800"])
def test_a_broken_file_is_left_out_with_a_warning(text):
    keep("")
    cache_file().write_bytes(text.encode("utf-8", "surrogatepass"))
    said = re.escape(f"{cache_file()}: is not what `amprewrite calibrate` writes (")
    with pytest.warns(AmpWarning, match=said) as caught:
        assert emits_accumulators("cpu") == DEFAULTS["cpu"]
    assert "run `amprewrite calibrate` to measure again" in str(caught[0].message)


def test_a_broken_file_is_written_anew():
    keep("{")
    found = calibrate.calibrate()
    assert set(json.loads(cache_file().read_text())) == {found["backend"]}


def test_a_folder_that_cannot_be_written_is_said(cache, monkeypatch):
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    with pytest.raises(UnsupportedError, match="set XDG_CACHE_HOME to a folder"):
        calibrate.calibrate()
