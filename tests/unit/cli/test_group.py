"""The commands are there, and the program ends as it should."""

import sys

import pytest

from amprewrite import cli
from tests.command_line import run


def test_no_command_shows_the_commands():
    output = run().output
    commands = "calibrate convert demo inspect policy promote verify"
    for command in commands.split():
        assert command in output


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
