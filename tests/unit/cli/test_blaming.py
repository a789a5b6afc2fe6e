"""The command that names the ops which cause an error."""

import json
import sys

import pytest

import amprewrite
from tests.command_line import done, mistake

torch = pytest.importorskip("torch")

FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    return model.eval(), (torch.randn(8, 16),)
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "blamed_model.py"
    path.write_text(FILE)
    yield f"{path}:build"
    sys.modules.pop("blamed_model", None)


def test_ops_are_blamed_and_a_policy_is_written(target, tmp_path):
    page = tmp_path / "page.html"
    text = done("blame", target, "--top", "2", "--html", page)
    assert '"title":"Blame"' in page.read_text()
    head, first, _ = text.splitlines()
    assert head.startswith("error 0.00")
    assert "linear" in first
    assert "% of the error" in first
    policy = tmp_path / "fixed.toml"
    found = json.loads(
        done("blame", target, "--fix", "0.002", "--output", policy, "--json")
    )
    assert found["fixed_error"] <= 0.002 < found["error"]
    assert found["fix"]
    assert found["entries"][0]["op"].startswith("linear")
    sys.modules.pop("blamed_model", None)
    told = json.loads(done("verify", target, "--policy", policy, "--json"))
    assert told["error"] == pytest.approx(found["fixed_error"], rel=0.2)
    assert amprewrite.load_policy(str(policy)).name


def test_a_file_without_a_fix_is_a_mistake(target, tmp_path):
    line = mistake("blame", target, "--output", tmp_path / "fixed.toml")
    assert "give --fix ERROR" in line
