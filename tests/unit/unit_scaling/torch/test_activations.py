"""Scaled activations of torch: values, gradients, constraints, dropout."""

from typing import Any

import pytest

from amprewrite.errors import UnitScalingError, UnsupportedError

pytest.importorskip("torch")

import torch
from torch.nn import functional

from amprewrite.unit_scaling import rule
from amprewrite.unit_scaling.functional import (
    dropout,
    gelu,
    hardtanh,
    relu,
    silu,
    softmax,
    tanh,
)

X = torch.linspace(-3, 3, 11)


def value_and_gradient(function, x=X):
    given: Any = x.clone().requires_grad_()
    y = function(given)
    y.sum().backward()
    return y.detach(), given.grad


def test_one_factor_both_ways_gives_the_true_gradient():
    forward, _ = rule("gelu", 2.0)
    found = value_and_gradient(lambda x: gelu(x, 2.0))
    true = value_and_gradient(lambda x: functional.gelu(2 * x) / 2 * forward)
    torch.testing.assert_close(found, true)


def test_hardtanh_is_cut_and_scaled_as_published():
    factors: Any = rule("hardtanh", 4.0)
    forward, backward = factors
    y, gradient = value_and_gradient(lambda x: hardtanh(x, 4.0, None))
    torch.testing.assert_close(y, X.clamp(-0.25, 0.25) * forward)
    torch.testing.assert_close(gradient, (X.abs() < 0.25) * backward)


def test_a_constraint_may_follow_the_gradient():
    factors: Any = rule("hardtanh")
    _, backward = factors
    y = hardtanh(X, constraint="to_grad_input_scale")
    torch.testing.assert_close(y, X.clamp(-1, 1) * backward)


def test_softmax_sums_to_its_factor():
    y = softmax(torch.randn(4, 16), 0, 2.0)
    factor = rule("softmax", 2.0, size=4)[0]
    torch.testing.assert_close(y.sum(0), torch.full((16,), factor))


def test_dropout_keeps_the_scale():
    x: Any = torch.randn(2**18, requires_grad=True)
    y = dropout(x, 0.75)
    y.backward(torch.randn_like(y))
    assert (y.std().item(), x.grad.std().item()) == pytest.approx((1, 1), abs=0.02)
    assert dropout(x, 0.75, training=False) is x


def test_mistakes_are_told():
    with pytest.raises(UnitScalingError, match="unknown constraint 'to_output'"):
        relu(X, constraint="to_output")
    with pytest.raises(UnitScalingError, match="silu: mult is 0"):
        silu(X, 0.0)
    with pytest.raises(UnsupportedError, match="complex"):
        tanh(X.to(torch.complex64))
