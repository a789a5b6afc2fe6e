"""Tensors of a run of a torch module, and the state that stays."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from amprewrite.errors import ArgumentError
from amprewrite.frameworks.torch_fx.watching import observe


def rows_of(model, *args, gradients=True):
    found = []

    def look(seen):
        found.append((seen, seen.values()))

    observe(model, args, {}, look, gradients=gradients)
    return found


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.cell, self.drop = nn.LSTM(6, 3), nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        h = self.norm(self.up(x))
        h += 1
        h = self.drop(h.view(2, 4, 6).detach() * 2 + h.view(2, 4, 6))
        return self.cell(h)[0] * self.frozen


def test_results_of_functions_are_seen_in_place_and_in_tuples_without_views():
    model = Model()
    rows = rows_of(model, torch.randn(8, 4))
    made = [s.name for s, _ in rows if not s.parameter and not s.gradient]
    assert made == [
        *("linear", "batch_norm", "add_", "mul", "add", "dropout"),
        *("zeros", "zeros_1", "lstm", "lstm_1", "lstm_2", "mul_1"),
    ]
    paths = {s.name: s.path for s, _ in rows if not s.parameter}
    assert (paths["linear"], paths["lstm"], paths["add_"]) == ("up", "cell", "")
    weights = [s.name for s, _ in rows if s.parameter and not s.gradient]
    assert weights == [name for name, _ in model.named_parameters()]
    gradients = {s.name: v for s, v in rows if s.gradient}
    assert "frozen" not in gradients
    # The first product reads what was detached: no gradient passes.
    assert set(made) - set(gradients) == {"mul", "zeros", "zeros_1", "lstm_1", "lstm_2"}
    before, after = gradients["batch_norm"], gradients["add_"]
    assert np.array_equal(before, after)


def test_the_model_stays_as_it_was():
    model, x = Model(), torch.randn(8, 4)
    held = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    kept = model(x).sum()  # its graph holds the buffers
    torch.set_rng_state(state)
    held = {name: value.clone() for name, value in model.state_dict().items()}
    first, again = (rows_of(model, x) for _ in range(2))
    assert all(
        np.array_equal(a, b) for (_, a), (_, b) in zip(first, again, strict=True)
    )
    kept.backward()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(held[n], v) for n, v in model.state_dict().items())
    model.zero_grad()
    rows_of(model, x)
    assert all(p.grad is None for p in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())


def test_a_converted_model_shows_what_runs():
    x = torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    converted = amprewrite.convert(model, args=(x,), training=True)
    found = amprewrite.histogram(converted, (x,))
    linear = next(row for row in found.tensors if row.name.startswith("linear"))
    assert linear.size == 64
    assert [row.name for row in found.of("weight gradient")] == [
        *("0.weight", "0.bias", "2.weight", "2.bias")
    ]
    assert amprewrite.histogram(converted, (x,)) == found


def test_without_anything_to_differentiate_it_says_so():
    x = torch.ones(2, 4, requires_grad=True)
    with pytest.raises(ArgumentError, match="has no parameter that is trained"):
        rows_of(nn.ReLU(), x)
    with pytest.raises(ArgumentError, match="no float tensor that depends on a"):
        rows_of(nn.ReLU(), x.detach())
    assert len(rows_of(nn.ReLU(), x.detach(), gradients=False)) == 1
