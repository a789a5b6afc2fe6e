"""Why a converted module has no ops that can be restored."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.comparison.ablation import ablation
from amprewrite.measure.runs import Call

CALL = Call((torch.ones(2, 4),), {})


def test_a_plain_module_has_no_graph() -> None:
    model = nn.Linear(4, 4)
    assert ablation(model, model, CALL) == (
        "the converted model has no graph of the whole model"
    )


def test_another_model_is_another_program() -> None:
    converted = amprewrite.convert(nn.Linear(4, 4).eval(), args=CALL.args)
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    assert ablation(other, converted, CALL) == "captured again it is another program"
