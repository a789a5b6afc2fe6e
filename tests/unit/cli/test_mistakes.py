"""Every command says a mistake in one message, and exits with 1 or 2."""

import sys

import pytest
from typer.main import get_command

from amprewrite import cli
from tests.command_line import run

pytest.importorskip("torch")

FILE = """
import torch
from torch import nn

def build():
    return nn.Linear(4, 4).eval(), (torch.ones(2, 4),)

def raising():
    raise ValueError("no weights here")

def too_few():
    return nn.Bilinear(4, 4, 4).eval(), (torch.ones(2, 4),)

def nan():
    model = nn.Linear(4, 4).eval()
    nn.init.constant_(model.weight, float("nan"))
    return model, (torch.ones(2, 4),)
"""
POLICY = """
extends = "bf16"
colour = "red"
[dtypes]
low = "bf17"
[ops]
gelu = "den"
"""
NAMES = {"name": "linear", "other": "bf16"}
"""Arguments beside the target or the file."""

FAILS_ON_NAN = {"verify": 1, "blame": 1, "pareto": 2}
"""Commands that look at numbers; the others plan without them."""


def commands():
    """Yield each command with the names of its arguments."""
    group = get_command(cli.app)
    for name, command in getattr(group, "commands", {}).items():
        inside = getattr(command, "commands", {"": command})
        for second, one in inside.items():
            arguments = [p for p in one.params if p.param_type_name == "argument"]
            yield [name, second][: 1 + bool(second)], [p.name for p in arguments]


MODELS = [
    [*name, "{target}", *(NAMES[other] for other in names[1:])]
    for name, names in commands()
    if names[:1] == ["target"]
]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mistaken_model.py"
    path.write_text(FILE)
    yield path
    sys.modules.pop("mistaken_model", None)


def said(command, target, code):
    """Return the one message of a command on stderr."""
    result = run(*(target if part == "{target}" else part for part in command))
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == "" or code == 1
    assert "Traceback" not in result.stderr
    messages = [x for x in result.stderr.splitlines() if x.startswith("amprewrite: ")]
    assert len(messages) == 1
    return result.stderr


@pytest.mark.parametrize("command", MODELS, ids=lambda command: command[0])
def test_a_model_that_is_wrong_is_one_message(command, file, tmp_path):
    assert "no such file" in said(command, tmp_path / "nowhere.py:build", 2)
    assert "did you mean 'nan'?" in said(command, f"{file}:nann", 2)
    assert "ValueError: no weights here" in said(command, f"{file}:raising", 2)
    assert "input2" in said(command, f"{file}:too_few", 2)
    if code := FAILS_ON_NAN.get(command[0]):
        assert "finite" in said(command, f"{file}:nan", code)
    else:
        target = f"{file}:nan"
        parts = (target if part == "{target}" else part for part in command)
        assert run(*parts).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        *([*command, "--policy", "{policy}"] for command in MODELS),
        ["policy", "show", "{policy}"],
        ["policy", "check", "{policy}"],
        ["policy", "diff", "{policy}", "bf16"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_policy_with_three_mistakes_is_one_message(command, file, tmp_path):
    policy = tmp_path / "mine.toml"
    policy.write_text(POLICY)
    given = [policy if part == "{policy}" else part for part in command]
    text = said(given, f"{file}:build", 2)
    for mistake in ("colour", "bf17", "'den'"):
        assert mistake in text


@pytest.mark.parametrize(
    "command",
    [
        ["policy", "check", "no_such.toml"],
        ["policy", "show", "no_such"],
        ["promote", "int32", "no_such"],
        ["promote"],
        ["format", "one"],
        ["format", "1", "--in", "fp17"],
    ],
    ids=" ".join,
)
def test_other_commands_say_their_mistakes_too(command):
    said(command, "", 2)
