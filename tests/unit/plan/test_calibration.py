"""What was measured is kept by device; a file that cannot be used is left out."""

import json
import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.plan.hardware import (
    Elementwise,
    cache_file,
    cache_folder,
    load_calibration,
    save_calibration,
)
from tests.calibrations import DEVICE, calibration

FOUND = calibration()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_files_are_in_the_users_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder() == cache / "amprewrite"
    assert cache_file(DEVICE).parent == cache_folder()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(cache))
    assert cache_folder() == cache / ".cache" / "amprewrite"


def test_what_is_kept_is_found_again() -> None:
    assert load_calibration(DEVICE) is None
    assert save_calibration(FOUND) == cache_file(DEVICE)
    assert load_calibration(DEVICE) == FOUND
    assert [file.name for file in cache_folder().iterdir()] == [cache_file(DEVICE).name]


@pytest.mark.parametrize("field", ["framework", "version", "kind", "name", "features"])
def test_what_was_measured_elsewhere_is_not_used(field: str) -> None:
    save_calibration(FOUND)
    other = replace(DEVICE, **{field: "other"})
    assert load_calibration(other) is None
    save_calibration(calibration(other))
    assert load_calibration(DEVICE) == FOUND


def without(key: str) -> str:
    data = asdict(FOUND)
    del data[key]
    return json.dumps(data)


def changed(**parts: object) -> str:
    return json.dumps({**asdict(FOUND), **parts})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        (without("casts"), "casts: Field required"),
        (changed(format=2), "format: Input should be 1"),
        (changed(future=1), "future: Unexpected"),
        (changed(device={**asdict(DEVICE), "future": 1}), "device.future: "),
        (changed(casts={"float16": {**asdict(FOUND)["casts"]["float16"],
                                    "down": 0.0}}), "casts.float16.down: "),
        (changed(device={**asdict(DEVICE), "name": "Other"}), "it is of Other"),
        ("\ud800", "codec can't decode"),
    ],
)  # fmt: skip
def test_a_broken_file_is_left_out_with_a_warning(text: str, reason: str) -> None:
    file = save_calibration(FOUND)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    said = re.escape(f"{file}: is no file of `amprewrite calibrate` (")
    with pytest.warns(AmpWarning, match=said) as caught:
        assert load_calibration(DEVICE) is None
    assert reason in str(caught[0].message)
    assert "run `amprewrite calibrate` to measure again" in str(caught[0].message)
    save_calibration(FOUND)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_calibration(DEVICE) == FOUND


def test_a_folder_that_cannot_be_written_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    with pytest.raises(UnsupportedError, match="set XDG_CACHE_HOME to a folder"):
        save_calibration(FOUND)
    with pytest.warns(AmpWarning, match="Not a directory"):
        assert load_calibration(DEVICE) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_not_kept(seconds: float) -> None:
    op = Elementwise(op="add", elements=1, seconds={"float32": seconds})
    with pytest.raises(ValueError, match=r"^elementwise\.0\.seconds\.float32: "):
        save_calibration(replace(FOUND, elementwise=(op,)))
    assert not cache_folder().exists()


def test_a_device_is_said_in_words() -> None:
    assert str(DEVICE) == "Slow & Sons (cpu) by torch 2.0"
    featured = replace(DEVICE, features="avx2, 1 threads")
    assert str(featured) == "Slow & Sons (cpu, avx2, 1 threads) by torch 2.0"
