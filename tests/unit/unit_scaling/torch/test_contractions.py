"""Scaled contractions of torch: weights, biases, masks, captured programs."""

from typing import Any

import pytest

from amprewrite.errors import ArgumentError

pytest.importorskip("torch")

import torch
from torch.nn import functional

from amprewrite.unit_scaling.functional import (
    conv1d,
    conv2d,
    cross_entropy,
    embedding,
    linear,
    linear_readout,
    matmul,
    residual_apply,
    scaled_dot_product_attention,
)


def test_a_bias_has_a_unit_gradient_and_the_factor_of_the_output():
    x, weight = torch.randn(4096, 16), torch.randn(64, 16)
    bias: Any = torch.zeros(64, requires_grad=True)
    linear(x, weight, bias).backward(torch.randn(4096, 64))
    assert bias.grad.std().item() == pytest.approx(1, abs=0.3)
    shifted = linear(x, weight, torch.ones(64))
    plain = linear(x, weight)
    torch.testing.assert_close(shifted - plain, torch.full((4096, 64), 0.25))


def test_a_convolution_takes_a_bias_and_no_batch():
    x, weight, bias = torch.randn(4, 9, 9), torch.randn(6, 2, 3, 3), torch.randn(6)
    y = conv2d(x, weight, bias, stride=(1, 2), groups=2)
    plain = functional.conv2d(x, weight, bias, stride=(1, 2), groups=2)
    torch.testing.assert_close(y, plain * 18**-0.5)


def test_padding_has_no_gradient():
    weight: Any = torch.randn(5, 3, requires_grad=True)
    embedding(torch.tensor([0, 1, 1]), weight, 0).sum().backward()
    assert weight.grad[0].tolist() == [0, 0, 0]
    assert weight.grad[1, 0].item() == pytest.approx(2 * (5 / 3) ** 0.5)


def test_a_mask_of_attention_reaches_it():
    query, key, value = torch.randn(3, 4, 8).unbind()
    mask = torch.eye(4, dtype=torch.bool)
    plain = scaled_dot_product_attention(query, key, value)
    y = scaled_dot_product_attention(query, key, value, mask)
    assert not torch.allclose(plain, y)
    factors = y / value
    torch.testing.assert_close(factors, torch.full_like(factors, factors[0, 0].item()))


def test_a_vector_is_refused():
    with pytest.raises(ArgumentError, match="matmul of shapes"):
        matmul(torch.ones(3), torch.ones(3, 3))


def test_an_empty_batch_passes():
    weight: Any = torch.randn(3, 4, requires_grad=True)
    y = linear(torch.ones(0, 4), weight)
    assert y.shape == (0, 3)
    y.sum().backward()
    assert not weight.grad.any()


class Network(torch.nn.Module):
    """A small language model, and its loss."""

    table: Any
    mix: Any
    near: Any

    def __init__(self):
        super().__init__()
        shapes = {"table": (50, 16), "mix": (16, 16), "near": (16, 16, 3)}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.randn(shape)))

    def attend(self, x):
        query = linear(x, self.mix)
        return scaled_dot_product_attention(query, x, x, is_causal=True)

    def forward(self, tokens):
        x = embedding(tokens, self.table)
        x = residual_apply(self.attend, x, 0.5)
        x = conv1d(x.mT, self.near, padding=1).mT
        x = matmul(x, x.mT) @ x
        logits = linear_readout(x, self.table)
        return cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("how", ["export", "compile"])
def test_a_captured_model_has_the_gradients_at_every_batch(how):
    model, batches = Network(), [torch.randint(50, (n, 8)) for n in (3, 5)]
    batch = ({0: torch.export.Dim("batch")},)
    if how == "export":
        program = torch.export.export(model, (batches[0],), dynamic_shapes=batch)
        captured: Any = program.module()
    else:
        captured = torch.compile(
            model, backend="aot_eager", fullgraph=True, dynamic=True
        )
    for tokens in batches:
        found = torch.autograd.grad(captured(tokens), list(captured.parameters()))
        wanted = torch.autograd.grad(model(tokens), list(model.parameters()))
        torch.testing.assert_close(found, wanted)
