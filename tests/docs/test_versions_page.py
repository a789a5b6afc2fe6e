"""The releases that are tried are those that are claimed; the page has their table."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from amprewrite.frameworks.least import LEAST
from tests.docs.links import ROOT
from tools import versions
from tools.versions import Result, UnavailableError, Versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGE = versions.PAGE.read_text(encoding="utf-8")
EVERY = versions.environments()


def test_the_least_releases_and_each_minor_one_are_tried():
    lowest, *_, newest = EVERY
    assert lowest.lowest
    assert lowest.torch.startswith(LEAST["torch"])
    assert lowest.jax == LEAST["jax"]
    assert newest.torch == versions.newest("torch")
    minors = {int(v.torch.split(".")[1]) for v in EVERY}
    assert minors == set(range(min(minors), max(minors) + 1))
    pins = versions.pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert pins["torch"] in {v.torch for v in EVERY}


def test_every_python_is_tried():
    found = re.findall(r":: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert {v.python for v in EVERY} == set(found)


def test_releases_that_messages_name_are_those_that_are_tried():
    threads = pytest.importorskip("amprewrite.frameworks.torch_fx.compat.threads")
    first, last = (v.torch.rpartition(".")[0] for v in (EVERY[0], EVERY[-1]))
    assert f"torch {first} to {last}" == threads.TESTED


def test_the_lowest_have_the_bounds_of_the_project_file():
    pins = EVERY[0].pins
    for line in PROJECT["project"]["dependencies"]:
        name, bound = line.split(">=")
        assert pins[name] == bound
    assert (pins["torch"], pins["jax"]) == (EVERY[0].torch, EVERY[0].jax)
    assert "jaxlib" not in pins  # that of the JAX


def test_later_constraints_win():
    text = (ROOT / versions.NEWEST).read_text(encoding="utf-8")
    assert EVERY[-1].pins.items() >= versions.pinned(text).items()
    assert EVERY[-1].pins["pytest"] == EVERY[3].pins["pytest"]


def test_every_test_that_is_named_exists():
    whole = [f"tests/integration/test_{name}.py" for name in versions.WHOLE]
    for name in (*versions.FAST, *versions.SLICE, *whole):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("mark", versions.MARKS)
def test_the_page_has_a_place_for_the_table(mark):
    assert PAGE.count(mark) == 1


def test_lines_are_replaced_and_sorted_by_torch():
    page = "\n".join(("a", versions.MARKS[0], versions.MARKS[1], "b\n"))
    lines = [
        versions.row(
            dict.fromkeys(versions.RELEASES, "1.0") | {"torch": torch},
            Result(passed, 0, 2),
            "2026-01-02",
        )
        for torch, passed in (("2.11.0+cpu", 5), ("2.9.1", 6), ("2.9.1", 7))
    ]
    for line in lines:
        page = versions.with_rows(page, {versions.key_of(line): line})
    table = [line for line in page.splitlines() if "2026" in line]
    assert table == [lines[2], lines[0]]
    assert page.startswith("a\n")
    assert page.endswith("b\n")


def test_tests_are_counted():
    xml = (
        '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3"/>'
        "</testsuites>"
    )
    assert versions.counts(xml) == Result(4, 2, 3)
    assert Result(1, 2, 3) + Result(4, 5, 6) == Result(5, 7, 9)


def test_a_pytest_that_ends_with_an_error_has_failed(tmp_path: Path):
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_it(): pass\n", encoding="utf-8")
    bad.write_text("def test_it(): assert False\n", encoding="utf-8")
    python = Path(sys.executable)
    apart = ["-c", "/dev/null", f"--rootdir={tmp_path}"]
    assert versions.run_tests(python, [str(good), *apart]) == Result(1, 0, 0)
    assert versions.run_tests(python, [str(bad), *apart]) == Result(0, 1, 0)
    absent = [str(tmp_path / "test_absent.py"), *apart]
    assert versions.run_tests(python, absent) == Result(0, 1, 0)


def test_an_absent_python_is_named():
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert versions.interpreter(here) == sys.executable
    with pytest.raises(UnavailableError, match=r"no Python 2\.1 was found"):
        versions.interpreter("2.1")


def refused(*_: object, **__: object) -> Any:
    return subprocess.CompletedProcess([], 1)


def test_packages_that_do_not_fit_are_an_error(tmp_path, monkeypatch):
    def run(command: Any, **given: Any) -> Any:
        if "venv" in command:
            Path(command[-1]).mkdir()
        elif command[-1] == "pytest":
            assert given["check"]
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(versions.subprocess, "run", run)
    monkeypatch.setattr(versions, "interpreter", lambda _: sys.executable)
    made = Versions("x", "3.11", "9.9.9", "9.9.9")
    with pytest.raises(subprocess.CalledProcessError):
        versions.built(made, tmp_path / "x", ("pytest",))


def test_a_release_that_pip_cannot_have_is_left_out(tmp_path, monkeypatch, capsys):
    commands = list[Any]()

    def run(command: Any, **given: Any) -> Any:
        commands.append((command, given))
        folder = Path(command[-1])
        if "venv" in command:
            folder.mkdir()
        return refused()

    monkeypatch.setattr(versions.subprocess, "run", run)
    monkeypatch.setattr(versions, "interpreter", lambda _: sys.executable)
    made = Versions("x", "3.11", "9.9.9", "9.9.9")
    with pytest.raises(UnavailableError, match=r"pip cannot install torch 9\.9\.9"):
        versions.built(made, tmp_path / "x", ())
    assert not (tmp_path / "x").exists()
    constraints = Path(commands[-1][1]["env"]["PIP_CONSTRAINT"])
    assert constraints == tmp_path / "x" / "constraints.txt"  # a cap of pip is lifted
    assert versions.tried_slice()
    wanted = f"pip cannot install torch {versions.newest('torch')}: the tests with the"
    assert wanted in capsys.readouterr().out


@pytest.mark.parametrize(("failed", "good"), [(0, True), (2, False)])
def test_a_failure_with_the_newest_torch_fails(failed, good, monkeypatch, capsys):
    monkeypatch.setattr(versions, "built", lambda *_: Path(sys.executable))
    monkeypatch.setattr(versions, "run_tests", lambda *_: Result(3, failed, 0))
    assert versions.tried_slice() is good
    assert f"3 passed, {failed} failed" in capsys.readouterr().out


def test_ci_runs_the_slice():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\npython -m tools.versions --slice </dev/null\n" in text
