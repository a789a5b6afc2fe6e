"""Devices by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.plan.hardware import (
    Device,
    cache_folder,
    measured_devices,
    named_device,
    save_calibration,
)
from tests.calibrations import DEVICE, calibration

KINDS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def named(name: str, here: Device | None = None) -> Device:
    return named_device(name, DEVICE.framework, "2.13.0", KINDS, lambda _: here)


def test_a_kind_is_what_is_there_or_what_was_measured_or_unknown() -> None:
    kind = DEVICE.kind
    assert named(kind, DEVICE) == DEVICE
    assert (named(kind).kind, named(kind).name) == (kind, kind)
    save_calibration(calibration())
    assert measured_devices(DEVICE.framework) == [DEVICE]
    assert measured_devices("other") == []
    assert named(kind) == DEVICE
    other = replace(DEVICE, name="another")
    save_calibration(replace(calibration(), device=other))
    assert named(kind).name == kind
    assert named("gpu:0").kind == "cuda"


def test_a_measured_device_goes_by_its_name() -> None:
    save_calibration(calibration())
    assert named(DEVICE.name.upper()) == DEVICE
    newer = replace(DEVICE, version="2.13.0")
    save_calibration(replace(calibration(), device=newer))
    assert named(DEVICE.name) == newer


def test_an_unknown_name_lists_what_is_known() -> None:
    with pytest.raises(UnsupportedError, match=r"'abacus'; want cpu, cuda.*: none"):
        named("abacus")
    save_calibration(calibration())
    (cache_folder() / f"{DEVICE.framework}-cpu-broken.json").write_text("{")
    with pytest.raises(UnsupportedError, match=DEVICE.name):
        named("abacus")
