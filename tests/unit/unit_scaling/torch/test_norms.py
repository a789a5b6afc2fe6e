"""Scaled normalisations of torch: plain values, unit gradients of weights."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from amprewrite.unit_scaling.functional import layer_norm, rms_norm

X, WEIGHT, BIAS = torch.randn(1024, 8, 64), torch.randn(8, 64), torch.randn(8, 64)


def test_values_are_plain():
    found = layer_norm(X, (8, 64), WEIGHT, BIAS)
    torch.testing.assert_close(found, functional.layer_norm(X, (8, 64), WEIGHT, BIAS))
    found = rms_norm(X, (8, 64), WEIGHT)
    torch.testing.assert_close(found, functional.rms_norm(X, (8, 64), WEIGHT, 1e-5))


def test_gradients_of_weights_have_unit_scale():
    given: list[Any] = [x.clone().requires_grad_() for x in (WEIGHT, BIAS, WEIGHT)]
    y = layer_norm(X, (8, 64), given[0], given[1]) + rms_norm(X, (8, 64), given[2])
    y.backward(torch.randn_like(y))
    scales = [x.grad.std().item() for x in given]
    assert scales == pytest.approx([1, 1, 1], abs=0.15)
