"""Scales of the tensors of a torch module."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.unit_scaling import functional, track_scales


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 128))
        self.unused = nn.Parameter(torch.ones(2))
        self.act, self.norm = nn.ReLU(), nn.BatchNorm1d(256)

    def forward(self, x):
        y = functional.linear(x, self.weight, None, None)
        return self.norm(self.act(y)).chunk(2, -1)


MODEL = Model()
FOUND: Any = track_scales(MODEL, (torch.randn(512, 128),))


NAMES = [row.name for row in FOUND.rows]


def test_values_and_gradients_have_their_scales():
    relu = FOUND["relu"]
    assert (relu.forward.rms, relu.forward.zeros) == pytest.approx(
        (0.707, 0.5), abs=0.02
    )
    assert (relu.where, relu.shape) == ("act", (512, 256))
    before = FOUND["linear"].backward
    assert before.zeros == pytest.approx(0.5, abs=0.02)
    assert FOUND["batch_norm"].backward.rms == pytest.approx(1, abs=0.02)
    assert FOUND["scale_2"].forward.std == pytest.approx(1, abs=0.02)


def test_parameters_come_first_and_views_are_left_out():
    assert NAMES[:4] == ["weight", "unused", "norm.weight", "norm.bias"]
    assert FOUND["weight"].backward.rms > 0
    assert FOUND["unused"].backward is None
    assert not [name for name in NAMES if "chunk" in name or "__get__" in name]


def test_the_model_stays_as_it_was():
    assert MODEL.norm.num_batches_tracked == 0
    assert MODEL.weight.grad is None
    assert not MODEL.act._forward_hooks
