"""Each command, each mistake with exit code 2 and one line, JSON that parses."""

import json
import sys

import pytest
from typer.testing import CliRunner

from amprewrite import cli
from amprewrite.plan import Plan
from amprewrite.verify import Report

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
    return model.eval(), (torch.randn(4, 16),)

def loud():
    model = nn.Linear(16, 1)
    nn.init.constant_(model.weight, 1e4)
    return model.eval(), (torch.full((4, 16), 10.0),)

class Branches(nn.Module):
    def forward(self, x):
        return x if x.no_such_attribute else -x

BRANCHES = Branches(), (torch.ones(2),)
"""

CAST_LINE = "to = cast(%args_0) -> %to: bf16[4,16]"


def run(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, [str(arg) for arg in args])


def done(*args):
    """Stdout of a command that succeeds."""
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def mistake(*args):
    """The one line of a command that the user got wrong."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("amprewrite: ")
    return line


@pytest.fixture
def model(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "model_of_a_test.py"
    path.write_text(MODEL)
    yield f"{path}:build"
    sys.modules.pop("model_of_a_test", None)


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "bf16"\n[ops]\ngelu = "den"\nsoftmx = "deny"\n')
    return path


def test_no_command_shows_the_commands():
    output = run().output
    for command in ("convert", "demo", "inspect", "policy", "verify"):
        assert command in output


def test_main_runs_the_app(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["amprewrite", "policy", "no_such_policy"])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 2
    assert "unknown policy" in capsys.readouterr().err


# --- inspect -----------------------------------------------------------------------


def test_inspect_shows_summary_and_modules(model):
    text = done("inspect", model)
    assert "rewritten 1 of 3 ops to bfloat16" in text
    assert "casts by module" in text
    assert "decisions" not in text


def test_inspect_shows_every_decision_if_asked(model):
    assert "layer_norm wants full precision" in done("inspect", model, "--ops")


def test_inspect_json_is_a_plan(model, tmp_path):
    written = tmp_path / "plan.json"
    text = done("inspect", model, "--json", "--output", written)
    plan = Plan.from_json(json.loads(text))
    assert plan == Plan.load(written)
    assert plan.low == "bfloat16"


def test_inspect_explains_one_op(model):
    text = done("inspect", model, "--explain", "layer_norm")
    assert "class    deny, by ops.layer_norm" in text


def test_inspect_prints_the_graph_as_it_is(model):
    text = done("inspect", model, "--graph")
    assert "%input_1: f32[4,16] input" in text
    assert "bf16" not in text


def test_overrides_come_in_order(model):
    rules = ("--override", "path=0,class=deny", "--override", "op=linear,class=allow")
    assert "linear" in done("inspect", model, *rules, "--ops")
    plan = json.loads(done("inspect", model, *rules, "--json"))
    assert plan["decisions"][0]["rule"] == "overrides[0]"


def test_inspect_takes_any_policy(model, policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\nlinear = "deny"\n')
    assert "NOTHING WAS LOWERED" in done("inspect", model, "--policy", policy_file)
    jmp = "params=float32,compute=float32,output=float32"
    assert "rewritten" not in done("inspect", model, "--policy", jmp)


# --- convert -----------------------------------------------------------------------


def test_convert_shows_the_summary(model):
    assert "rewritten 1 of 3 ops" in done("convert", model)


def test_convert_prints_the_graph_as_it_becomes(model):
    assert CAST_LINE in done("convert", model, "--graph")


def test_convert_writes_plan_and_program(model, tmp_path):
    plan, program = tmp_path / "plan.json", tmp_path / "model.pt2"
    result = run("convert", model, "--output", plan, "--output", program, "--json")
    assert result.exit_code == 0
    assert Plan.load(plan) == Plan.from_json(json.loads(result.stdout))
    assert f"wrote {program}" in result.stderr
    torch = pytest.importorskip("torch")
    loaded = torch.export.load(program).module()
    assert loaded(torch.randn(4, 16)).dtype == torch.float32


def test_convert_applies_a_plan(model, tmp_path):
    plan = tmp_path / "plan.json"
    done("inspect", model, "--override", "op=linear,class=deny", "--output", plan)
    assert "bf16" not in done("convert", model, "--plan", plan, "--graph")


# --- verify ------------------------------------------------------------------------


def test_verify_shows_the_report(model):
    text = done("verify", model, "--rtol", "0.5")
    assert "bound 0.5: ok" in text
    assert "autocast: " in text


def test_verify_json_is_a_report(model):
    report = Report.from_json(json.loads(done("verify", model, "--json")))
    assert report.bound is not None
    assert 1e-5 < report.error < report.bound


def test_verify_compares_gradients_if_asked(model):
    assert "largest gradient errors" in done("verify", model, "--gradients")


def test_verify_fails_with_exit_code_1(model):
    result = run("verify", model, "--rtol", "1e-9")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("amprewrite: verification failed: output ")
    assert "NOT OK" in result.stdout


def test_verify_fails_where_something_overflows(model):
    loud = model.replace("build", "loud")
    assert run("verify", loud, "--policy", "bf16").exit_code == 0
    result = run("verify", loud, "--policy", "fp16")
    assert result.exit_code == 1
    assert "4 new non-finite elements" in result.stderr


def test_verify_refuses_another_reference(model):
    assert "float64" in mistake("verify", model, "--reference", "float16")


# --- policy ------------------------------------------------------------------------


def test_policy_lists_what_is_shipped():
    assert "float16" in done("policy")
    assert json.loads(done("policy", "--json"))["bf16"].startswith("bfloat16")


def test_policy_shows_one():
    assert "exp and a sum" in done("policy", "bf16")
    assert (
        json.loads(done("policy", "bf16", "--json"))["ops"]["matmul"]["class"]
        == "allow"
    )


def test_policy_diff():
    assert "low: bfloat16 -> float16" in done("policy", "bf16", "--diff", "fp16")
    assert done("policy", "bf16", "--diff", "bf16") == "no difference\n"
    assert json.loads(done("policy", "bf16", "--diff", "bf16", "--json")) == []


def test_policy_check_says_every_mistake(policy_file):
    result = run("policy", "--check", policy_file)
    assert result.exit_code == 2
    assert "unknown class 'den'" in result.stderr
    policy_file.write_text(
        'extends = "bf16"\n[ops]\nsoftmx = "deny"\nlaier_norm = "deny"\n'
    )
    result = run("policy", "--check", policy_file)
    assert "did you mean 'softmax'?" in result.stderr
    assert "did you mean 'layer_norm'?" in result.stderr


def test_policy_check_of_a_good_file(policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\ngelu = "deny"\n')
    result = run("policy", "--check", policy_file)
    assert result.exit_code == 0
    assert "no mistakes" in result.stderr


# --- mistakes ----------------------------------------------------------------------


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


def test_a_wrong_rule_says_every_mistake(model):
    result = run("inspect", model, "--override", "pth=a,class=den")
    assert result.exit_code == 2
    assert result.stderr.startswith("amprewrite: overrides[0]: 2 mistakes\n")
    assert "Traceback" not in result.stderr


def test_an_unknown_op_is_one_line(model):
    assert "plan has no op 'lay'" in mistake("inspect", model, "--explain", "lay")


def test_a_model_that_cannot_be_captured_is_one_line(model):
    line = mistake("inspect", model.replace("build", "BRANCHES"))
    assert "Branches cannot be captured" in line


def test_plans_that_do_not_fit_are_one_line(model, tmp_path):
    assert "no such file" in mistake("convert", model, "--plan", tmp_path / "no.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "is no JSON" in mistake("convert", model, "--plan", broken)


def test_diff_without_a_policy_is_one_line():
    assert "want policy NAME --diff OTHER" in mistake("policy", "--diff", "bf16")


def test_a_missing_file_is_one_line(tmp_path):
    assert "cannot be read" in mistake("policy", "--check", tmp_path / "no.toml")
