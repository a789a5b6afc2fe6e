"""Workflows try what pyproject.toml claims; hooks run what `poe lint` does."""

import re
import tomllib
from typing import Any

import pytest

from tests.docs.links import ROOT

yaml = pytest.importorskip("yaml")  # transformers brings it

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TASKS = PROJECT["tool"]["poe"]["tasks"]
FRAMEWORKS = ("torch", "jax")


def loaded(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def job_of(name: str) -> dict[str, Any]:
    """The one job of a workflow."""
    (job,) = loaded(f".github/workflows/{name}.yml")["jobs"].values()
    return job


def pythons() -> list[str]:
    """The versions of Python that the classifiers name."""
    found = re.findall(r":: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    return sorted(found, key=lambda version: int(version.partition(".")[2]))


def oldest(framework: str) -> str:
    """The oldest version of a framework that is claimed, such as 2.11."""
    (line,) = PROJECT["project"]["optional-dependencies"][framework]
    return line.removeprefix(f"{framework}>=")


def test_ci_runs_the_command_of_the_readme_on_every_python():
    job = job_of("ci")
    assert job["strategy"]["matrix"]["python"] == pythons()
    assert PROJECT["project"]["requires-python"] == f">={pythons()[0]}"
    assert job["steps"][-1]["run"] == ".ci/run"


def test_the_oldest_and_the_newest_frameworks_are_tried():
    old, new = job_of("frameworks")["strategy"]["matrix"]["include"]
    assert (old["python"], new["python"]) == (pythons()[0], pythons()[-1])
    assert new["frameworks"].split() == list(FRAMEWORKS)
    pins = dict(pin.split("==") for pin in old["frameworks"].split())
    assert list(pins) == list(FRAMEWORKS)
    for framework, pin in pins.items():
        bound = oldest(framework)
        assert pin in (bound, f"{bound}.*", f"{bound}.0")


def test_no_constraint_holds_the_frameworks_that_are_tried():
    steps = job_of("frameworks")["steps"]
    (install,) = (s["run"] for s in steps if "pip install" in s.get("run", ""))
    (found,) = re.findall(r"grep -vE '(.*)' constraints.txt > others.txt", install)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    held = [line.partition("==")[0] for line in lines if re.search(found, line)]
    assert held == ["torch", "jax", "jaxlib"]
    assert "-c others.txt" in install


def test_commands_of_workflows_exist():
    for name in ("ci", "frameworks"):
        for step in job_of(name)["steps"]:
            for task in re.findall(r"^poe (\w+)", step.get("run", ""), re.MULTILINE):
                assert task in TASKS


def test_hooks_run_the_commands_of_poe():
    (repo,) = loaded(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in repo["hooks"]}
    house = entries.pop("house-rules").split()[-1]
    assert (ROOT / house).exists()
    lint = [step["cmd"] for step in TASKS["lint"]["sequence"]]
    assert list(entries.values()) == [*lint, TASKS["types"]["cmd"]]
    assert all(hook["language"] == "system" for hook in repo["hooks"])
