"""Scaled gradients of torch modules are valid, or are told not to be."""

import math
from typing import Any

import pytest

from amprewrite.errors import ArgumentError

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling import functional as F  # noqa: N812  # as in models


class Block(nn.Module):
    """A small language model; ``constraint`` is that of the ops on both paths.

    Attention and an MLP are parallel branches.
    """

    table: Any
    places: Any
    qkv: Any
    key_bias: Any
    up: Any
    down: Any
    readout: Any

    def __init__(self, constraint: str | None = "to_output_scale", *, tied=False):
        super().__init__()
        self.constraint = constraint
        shapes = {"table": (20, 16), "places": (6, 16), "qkv": (48, 16)}
        shapes |= {"key_bias": (16,), "up": (64, 16), "down": (16, 32)}
        shapes |= {} if tied else {"readout": (20, 16)}
        for name, shape in shapes.items():
            drawn = torch.zeros(shape) if "bias" in name else torch.randn(shape)
            setattr(self, name, nn.Parameter(drawn))
        self.readout = self.table if tied else self.readout
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("calls", torch.zeros(()))

    def attend(self, x):
        query, key, value = F.linear(x, self.qkv, None, self.constraint).chunk(3, -1)
        how = {"is_causal": True, "constraint": self.constraint}
        return F.scaled_dot_product_attention(query, key + self.key_bias, value, **how)

    def mlp(self, x):
        value, gate = F.linear(x, self.up, None, self.constraint).chunk(2, -1)
        hidden = F.silu_glu(value, gate, constraint=self.constraint)
        return F.linear(hidden, self.down, None, self.constraint)

    def forward(self, tokens):
        self.calls += 1
        x = F.add(F.embedding(tokens, self.table), self.places, self.constraint)
        x = F.residual_apply(lambda z: F.add(self.attend(z), self.mlp(z)), x, 0.5)
        logits = F.linear_readout(self.dropout(x), self.readout, None, self.constraint)
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(1, -1).flatten())


TOKENS = torch.arange(24).reshape(4, 6) % 20


def test_gradients_come_from_the_loss_beside_other_outputs():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(None)

        def forward(self, tokens):
            return (self.block.up**2).mean(), self.block(tokens).expand(2)

    found = check_gradient_validity(Both(), (TOKENS,))
    assert found.pop("block.up") == pytest.approx(1)
    assert all(map(math.isnan, found.values()))


def test_gradients_under_constraints_are_valid():
    found = check_gradient_validity(Block(), (TOKENS,))
    assert math.isnan(found.pop("key_bias"))  # it shifts all logits of a softmax
    assert min(found.values()) > 0.9999
    assert set(found) == {"table", "places", "qkv", "up", "down", "readout"}


def test_without_constraints_they_are_not():
    """The same model, every factor its own: paths are added with wrong weights."""
    found = check_gradient_validity(Block(constraint=None), (TOKENS,))
    assert min(found["table"], found["qkv"], found["up"]) < 0.99


def test_a_tied_weight_is_no_cut_edge():
    """As embedding and as readout it has factors of its own, for one gradient."""
    found = check_gradient_validity(Block(tied=True), (TOKENS,))
    assert found.pop("table") < 0.99
    assert math.isnan(found.pop("key_bias"))
    assert min(found.values()) > 0.9999


def test_the_check_leaves_everything_as_it_was():
    model, state = Block(), torch.random.get_rng_state()
    check_gradient_validity(model, (), {"tokens": TOKENS})
    assert model.calls == 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_a_compiled_model_is_checked_uncompiled():
    compiled = torch.compile(Block(constraint=None), backend="aot_eager")
    found = check_gradient_validity(compiled, (TOKENS,))
    assert min(found["_orig_mod.table"], found["_orig_mod.qkv"]) < 0.99


def test_a_frozen_model_is_refused():
    with pytest.raises(ArgumentError, match="Block gives no float tensor that depends"):
        check_gradient_validity(Block().requires_grad_(False), (TOKENS,))
