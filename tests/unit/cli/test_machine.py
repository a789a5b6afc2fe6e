"""The commands that measure: what they print, and where they write."""

import json

import pytest

from amprewrite import registry
from amprewrite.plan.hardware import Device, cache_file
from tests.calibrations import calibration
from tests.command_line import done, mistake, run

JAX = Device(framework="jax", version="1", kind="cpu", name="Slow & Sons")
FOUND = {"torch": calibration(), "jax": calibration(JAX)}


class Framework:
    """Stand in for a framework: nothing is timed."""

    def __init__(self, name):
        self.name = name

    def calibrate(self):
        return FOUND[self.name]


def install(monkeypatch, *names):
    found = {name: Framework(name) for name in names}
    monkeypatch.setattr(registry, "installed", lambda: found)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    install(monkeypatch, *FOUND)
    return tmp_path / "amprewrite"


def test_calibrate_prints_speeds_and_names_its_files(cache):
    result = run("calibrate")
    assert result.exit_code == 0
    assert "Slow & Sons (cpu) by torch 2.0" in result.stdout
    assert "Slow & Sons (cpu) by jax 1" in result.stdout
    files = [cache_file(found.device) for found in FOUND.values()]
    assert result.stderr == "".join(f"wrote {file}\n" for file in files)
    assert sorted(cache.iterdir()) == sorted(files)


def test_calibrate_prints_json_as_it_is_kept():
    found = json.loads(done("calibrate", "--json"))
    assert set(found) == {"torch", "jax"}
    for name, data in found.items():
        assert data == json.loads(cache_file(FOUND[name].device).read_text())


def test_calibrate_times_what_is_installed(cache, monkeypatch):
    install(monkeypatch, "jax")
    assert list(json.loads(done("calibrate", "--json"))) == ["jax"]
    assert [file.name[:3] for file in cache.iterdir()] == ["jax"]


def test_calibrate_without_a_framework_is_one_line(monkeypatch):
    install(monkeypatch)
    assert "pip install 'amprewrite[torch]' or 'amprewrite[jax]'" in mistake(
        "calibrate"
    )


def test_calibrate_says_where_it_cannot_write(cache):
    cache.write_text("")
    assert "set XDG_CACHE_HOME to a folder that can" in mistake("calibrate")
