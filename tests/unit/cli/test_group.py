"""The commands are there, and the program ends as it should."""

import errno
import importlib.metadata
import json
import subprocess
import sys

import pytest

import amprewrite
from amprewrite import cli
from amprewrite.errors import VerifyError
from tests.command_line import done, run


def test_no_command_shows_the_commands():
    output = run().output
    commands = "calibrate convert demo doctor inspect policy promote verify"
    for command in commands.split():
        assert command in output


def test_the_help_says_what_exit_codes_mean():
    output = " ".join(run("--help").output.split())
    assert "Exit codes: 0 done; 1 verification failed; 2 a mistake" in output


@pytest.mark.parametrize("command", ["verify", "inspect", "policy"])
def test_the_help_of_a_command_says_them_too(command):
    output = " ".join(done(command, "--help").split())
    assert "Exit codes: 0 done; 1 verification failed; 2 a mistake" in output


def test_the_version_is_that_of_the_package():
    assert done("--version").strip() == f"amprewrite {amprewrite.__version__}"
    installed = importlib.metadata.version("amprewrite")
    assert amprewrite.__version__ == installed


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "amprewrite"]
    version = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == f"amprewrite {amprewrite.__version__}"
    wrong = subprocess.run(
        [*command, "policy", "no_such"], capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["policy", "no_such"], "PolicyError", "unknown policy 'no_such'"),
        (["inspect", "nowhere.py:build"], "TargetError", "no such file"),
        (["policy", "--no-such"], "NoSuchOption", "--no-such"),
        (["promote", "int32", "no_such"], "PromotionError", "no_such"),
    ],
)
def test_an_error_under_json_is_an_object(arguments, kind, words):
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert found["error"]["kind"] == kind
    assert words in found["error"]["message"]
    assert words in result.stderr


def test_mistakes_of_a_policy_are_a_list_under_json(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('colour = "red"\n[dtypes]\nlow = "bf17"\n', encoding="utf-8")
    found = json.loads(run("policy", path, "--json").stdout)
    assert len(found["error"]["mistakes"]) == 2


def raising(error):
    def command(*_, **__):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "plan.json"), 2, "plan.json"),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (VerifyError("outputs differ"), 1, "outputs differ"),
        (KeyError("no such thing"), 3, "KeyError: 'no such thing'"),
    ],
)
def test_every_error_has_an_exit_code_and_a_line(monkeypatch, error, code, words):
    monkeypatch.setattr("amprewrite.cli.policies.load_policy", raising(error))
    result = run("policy", "bf16")
    assert (result.exit_code, result.stdout) == (code, "")
    line = result.stderr.splitlines()[-1]
    assert line.startswith("amprewrite: ")
    assert words in line
    assert ("Traceback" in result.stderr) == (code == 3)
    assert json.loads(run("policy", "bf16", "--json").stdout)["ok"] is False


def test_a_pipe_that_is_closed_is_no_mistake(monkeypatch):
    error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    monkeypatch.setattr("amprewrite.cli.policies.load_policy", raising(error))
    assert "amprewrite:" not in run("policy", "bf16").stderr


def test_main_runs_the_app(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["amprewrite", "policy", "no_such_policy"])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 2
    assert "unknown policy" in capsys.readouterr().err


def test_a_wrong_rule_says_every_mistake(model):
    result = run("inspect", model, "--override", "pth=a,class=den")
    assert result.exit_code == 2
    assert result.stderr.startswith("amprewrite: overrides[0]: 2 mistakes\n")
    assert "Traceback" not in result.stderr
