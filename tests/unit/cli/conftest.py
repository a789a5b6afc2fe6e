"""A model and a policy in files."""

import sys

import pytest

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
