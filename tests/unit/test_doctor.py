"""Versions, devices, and a conversion with each framework."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amprewrite import doctor, registry
from amprewrite.doctor import Diagnosis, Trial, diagnose


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    return diagnose()


def test_conversions_work_with_each_framework(found: Diagnosis) -> None:
    assert {trial.framework for trial in found.trials} == {"torch", "jax"}
    for trial in found.trials:
        assert trial.error is not None
        assert trial.bound is not None
        assert 1e-5 < trial.error < trial.bound
    assert found.problems == ()


def test_versions_are_said(found: Diagnosis) -> None:
    assert found.versions["numpy"] == np.__version__
    assert found.python.startswith(f"{sys.version_info.major}.")


def test_it_is_json(found: Diagnosis) -> None:
    data = json.loads(json.dumps(found.to_json()))
    assert data["ok"] is True
    assert data["trials"][0]["framework"] == "torch"


def test_an_absent_framework_is_left_out(monkeypatch: Any) -> None:
    for name in registry.TAKES:
        monkeypatch.setitem(sys.modules, name, None)
    found = diagnose()
    assert found.trials == ()
    assert "pip install 'amprewrite[torch]' or 'amprewrite[jax]'" in found.problems[0]
    assert found.to_json()["ok"] is False


def absent() -> None:
    raise ImportError("libsomething.so.1: cannot open shared object file")


def test_a_framework_that_does_not_load_is_a_problem(monkeypatch: Any) -> None:
    takes = {"sys": (None, absent)}  # a package that is there
    monkeypatch.setattr(registry, "TAKES", takes)
    found = diagnose()
    (problem,) = found.problems
    assert problem.startswith("sys: ImportError: libsomething.so.1")
    assert "Traceback" in found.trials[0].trace


def sample() -> Any:
    device = SimpleNamespace(name="a CPU", kind="cpu")
    given = {"device": device, "bfloat16": None, "why": "", "model": None, "args": ()}
    return SimpleNamespace(**given)


def tried(monkeypatch: Any, *problems: str, lowered: tuple[str, ...]) -> Trial:
    plan = SimpleNamespace(lowered=lowered)
    report = SimpleNamespace(error=0.5, bound=0.1, problems=problems)
    converted = SimpleNamespace(plan=plan)
    monkeypatch.setattr(doctor.api, "convert", lambda *_, **__: converted)
    monkeypatch.setattr(doctor.api, "verify", lambda *_: report)
    return doctor._tried("torch", sample())


def test_an_error_beyond_the_bound_is_a_problem(monkeypatch: Any) -> None:
    found = tried(monkeypatch, "output 0 differs", "more", lowered=("linear",))
    assert (found.failure, found.error) == ("output 0 differs", 0.5)
    assert tried(monkeypatch, lowered=("linear",)).failure == ""


def test_a_conversion_that_lowers_nothing_is_a_problem(monkeypatch: Any) -> None:
    assert "nothing was lowered" in tried(monkeypatch, lowered=()).failure


def test_a_conversion_that_raises_is_a_problem(monkeypatch: Any) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no kernel\nfor this")

    monkeypatch.setattr(doctor.api, "convert", fail)
    found = doctor._tried("torch", sample())
    assert found.failure == "OSError: no kernel for this"
    assert (found.device, found.error) == ("a CPU (cpu)", None)
