"""Releases of frameworks below the least are refused, where they are first used."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.least import LEAST, require

ROOT = Path(__file__).parents[3]


def test_the_least_releases_are_those_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert {name: extras[name] for name in LEAST} == {
        name: [f"{name}>={release}"] for name, release in LEAST.items()
    }


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("torch", "2.10.0"),
        ("torch", "2.9.1+cu130"),
        ("torch", "1.13.1"),
        ("jax", "0.10.0"),
        ("jax", "0.4.38"),
    ],
)
def test_an_older_release_is_refused_with_the_remedy(
    package: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest.importorskip(package), "__version__", release)
    least = LEAST[package]
    with pytest.raises(UnsupportedError) as raised:
        require(package)
    assert str(raised.value) == (
        f"{package} {release} is installed, and amprewrite needs {package} {least} or "
        f"newer: pip install --upgrade '{package}>={least}'"
    )


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("torch", "2.11.0+cpu"),
        ("torch", "2.11.0a0+gitab12"),
        ("torch", "2.16.0.dev20261101"),
        ("torch", "3.0"),
        ("jax", "0.10.1"),
        ("jax", "0.12.0"),
        ("jax", "1.0"),
    ],
)
def test_other_releases_are_taken(
    package: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest.importorskip(package), "__version__", release)
    require(package)


@pytest.mark.parametrize(("package", "name"), [("torch", "torch_fx"), ("jax", "jaxpr")])
def test_it_is_asked_where_a_framework_is_loaded(
    package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework: Any = pytest.importorskip(package)
    part = importlib.import_module(f"amprewrite.frameworks.{name}")
    monkeypatch.setattr(framework, "__version__", "0.1")
    with pytest.raises(UnsupportedError, match=f"{package} 0.1 is installed"):
        importlib.reload(part)
    importlib.reload(importlib.import_module("amprewrite"))  # loads no framework
