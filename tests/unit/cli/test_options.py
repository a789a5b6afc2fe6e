"""A wrong option or target is one line, and no work is done before."""

import json

import pytest

from amprewrite.cli.options import complete_placement, complete_policy
from tests.command_line import done, mistake


def test_overrides_come_in_order(model):
    rules = ("--override", "path=0,class=deny", "--override", "op=linear,class=allow")
    assert "linear" in done("inspect", model, *rules, "--ops")
    plan = json.loads(done("inspect", model, *rules, "--json"))
    assert plan["decisions"][0]["rule"] == "overrides[0]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "bf61"], "unknown policy 'bf61'"),
        (["--placement", "best"], "unknown placement 'best'"),
        (["--override", "deny"], "'deny' has no '='"),
        (["--output", "plan.yaml"], "want a name that ends in .json"),
        (["--output", "no/such/folder/plan.json"], "there is no folder no/such/folder"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_wrong_option_is_one_line(model, command, options, message):
    assert message in mistake(command, model, *options)


@pytest.mark.parametrize("command", ["inspect", "convert", "verify"])
def test_a_wrong_target_is_one_line(model, command):
    assert "did you mean 'build'?" in mistake(command, model.replace("build", "bild"))


def test_plans_that_do_not_fit_are_one_line(model, tmp_path):
    assert "no such file" in mistake("convert", model, "--plan", tmp_path / "no.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "is no JSON" in mistake("convert", model, "--plan", broken)


@pytest.mark.parametrize("name", ["model.txt", "model", "model.pt"])
def test_an_unknown_file_is_told_the_known_ones(model, name):
    known = "want a name that ends in .json or .pt2 or .onnx or .stablehlo"
    assert known in mistake("convert", model, "--out", name)


def test_the_shell_completes_names():
    assert "bf16-accumulate" in complete_policy("bf16")
    assert complete_placement("p") == ["promote", "paint"]
    assert complete_placement("f") == ["fastest"]
