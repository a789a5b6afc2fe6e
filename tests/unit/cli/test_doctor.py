"""The doctor on the command line: what it says, and its exit code."""

import json

import pytest

from amprewrite.cli import doctor
from amprewrite.doctor import Diagnosis, Trial
from tests.command_line import done, run

VERSIONS = {"numpy": "2.4", "jax": None}
WORKS = Trial("torch", "a CPU (cpu)", None, "unknown flags", 0.004, 0.02)
BROKEN = Trial("jax", failure="ImportError: no lib", trace="Traceback\n  line")


@pytest.fixture
def found(monkeypatch):
    def give(*trials):
        result = Diagnosis("3.13", VERSIONS, trials)
        monkeypatch.setattr(doctor, "diagnose", lambda: result)

    return give


def test_what_is_there_is_shown(found):
    found(WORKS)
    assert done("doctor").splitlines() == [
        "python  3.13",
        "numpy   2.4",
        "jax     not installed",
        "",
        "torch on a CPU (cpu)",
        "  bfloat16 instructions: unknown (unknown flags)",
        "  conversion: works, error 0.004 against float64, bound 0.02",
    ]


def test_a_failure_is_shown_and_is_exit_code_1(found):
    found(WORKS, BROKEN)
    result = run("doctor")
    assert result.exit_code == 1
    assert result.stdout.endswith("\njax\n  conversion: FAILED: ImportError: no lib\n")
    traceback, problem = result.stderr.split("\n  line\n")
    assert traceback == "Traceback"
    assert problem == "amprewrite: jax: ImportError: no lib\n"


def test_no_framework_is_a_failure(found):
    found()
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert "neither torch nor JAX is installed" in result.stderr


def test_the_help_says_the_exit_codes():
    text = " ".join(done("doctor", "--help").split())
    assert "Exit codes: 0 conversions work; 1 one failed" in text
