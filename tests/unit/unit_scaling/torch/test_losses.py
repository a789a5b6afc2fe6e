"""Scaled losses of torch: plain values, true directions, mistakes."""

from typing import Any

import pytest

from amprewrite.errors import ArgumentError

pytest.importorskip("torch")

import torch
from torch.nn import functional

from amprewrite.unit_scaling.functional import cross_entropy, mse_loss


def gradient(loss, x):
    given: Any = x.clone().requires_grad_()
    y = loss(given)
    y.backward()
    return y.detach(), given.grad


@pytest.mark.parametrize("shape", [(64, 10), (10,), (8, 10, 3)])
def test_cross_entropy_has_the_plain_value_and_direction(shape):
    logits = torch.randn(shape)
    target = torch.randint(10, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    found = gradient(lambda x: cross_entropy(x, target, 2.0), logits)
    plain = gradient(lambda x: functional.cross_entropy(2 * x, target), logits)
    torch.testing.assert_close(found[0], plain[0])
    ratio = found[1] / plain[1]
    torch.testing.assert_close(ratio, torch.full_like(ratio, ratio.flatten()[0].item()))


def test_a_target_may_be_left_out():
    logits, target = torch.randn(4, 10), torch.tensor([1, -1, 3, -1])
    found = cross_entropy(logits, target, ignore_index=-1)
    torch.testing.assert_close(
        found, functional.cross_entropy(logits[::2], target[::2])
    )


def test_mistakes_are_told():
    with pytest.raises(ArgumentError, match=r"target of torch\.float32; want class"):
        cross_entropy(torch.ones(4, 3), torch.ones(4, 3))
    with pytest.raises(ArgumentError, match=r"mse_loss of shapes \(4, 3\) and \(3,\)"):
        mse_loss(torch.ones(4, 3), torch.ones(3))
