"""Scales of the tensors of a torch module."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
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


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return self.last(x + self.down(nn.functional.gelu(self.up(x))))


X = torch.randn(32, 5, 64)


def test_a_linear_layer_is_a_row_though_its_result_is_a_view():
    found: Any = track_scales(Residual(), (X,))
    assert [row.name for row in found.rows if row.where] == ["linear", *LINEARS]
    assert found["linear_1"].where == "down"


LINEARS = ("linear_1", "linear_2")


@pytest.mark.parametrize("mode", [True, False])
def test_a_scaled_model_is_tracked_beside_the_plain_one(mode):
    plain = Residual().train(mode)
    scaled = amprewrite.unit_scale(plain, (X,)).train(not mode).train(mode)
    before: Any = track_scales(plain, (X,))
    table = before.beside(track_scales(scaled, (X,)))
    assert [row.name for row in table.rows[6:]] == [
        *("linear", "gelu", "linear_1", "add", "linear_2")
    ]
    for row in table.rows:
        old, new = row.scales("forward")
        if row.name.startswith("linear"):
            assert new.std == pytest.approx(1, abs=0.15)
            assert old.std < 0.75
            assert row.scales("backward")[1].std == pytest.approx(1, abs=0.6)
    assert track_scales(scaled, (X,)).rows == track_scales(scaled, (X,)).rows


def test_what_is_captured_while_it_is_tracked_is_no_tensor_of_the_run():
    scaled = amprewrite.unit_scale(Residual(), (X,)).eval()  # captured in train mode
    first, again = (track_scales(scaled, (X,)) for _ in range(2))
    assert first.rows == again.rows
    assert not first["linear"].where
    converted = amprewrite.convert(Residual(), args=(X,)).eval()
    rows = track_scales(converted, (X,)).rows
    assert rows == track_scales(converted, (X,)).rows
    assert [row.name for row in rows].count("gelu") == 1
