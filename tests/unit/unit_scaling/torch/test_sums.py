"""Scaled sums of torch, and residual branches with true gradients."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from amprewrite.unit_scaling import functional

X = torch.linspace(-1, 1, 6)


def test_one_element_shifts_and_nothing_else():
    torch.testing.assert_close(functional.add(X, torch.tensor(2.0)), X + 2)


def test_a_branch_is_weighed_forward_where_it_ends_and_backward_where_it_starts():
    x = X.clone().requires_grad_()
    functional.residual_apply(lambda z: 3 * z, x, tau=0.5).sum().backward()
    whole = 1.25**0.5
    y = functional.residual_apply(lambda z: 3 * z, X, tau=0.5)
    torch.testing.assert_close(y, X * (0.5 * 3 + 1) / whole)
    torch.testing.assert_close(x.grad, torch.full_like(X, (0.5 * 3 + 1) / whole))


def test_inside_of_a_branch_gradients_are_not_weighed():
    given: list[Any] = [X.clone().requires_grad_() for _ in range(2)]
    branch, skip = given
    functional.residual_add(branch, skip, tau=0.5).sum().backward()
    assert branch.grad.tolist() == skip.grad.tolist() == [1.0] * 6


@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
def test_a_residual_keeps_scales(tau):
    x: Any = torch.randn(2**18, requires_grad=True)
    mixed = torch.randperm(2**18)
    y = functional.residual_apply(lambda z: z[mixed], x, tau)
    y.backward(torch.randn_like(y))
    assert (y.std().item(), x.grad.std().item()) == pytest.approx((1, 1), abs=0.02)
