"""The operator that rounds to 8 bits, forward and backward."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.dtypes import quantise
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.rewrite.quantise_op import OPERATOR

FORWARD, BACKWARD = "float8_e4m3fn", "float8_e5m2"


def test_values_and_gradients():
    x = torch.randn(100, requires_grad=True)
    g = torch.randn(100)
    y = OPERATOR(x, FORWARD, "", "none")
    assert torch.equal(y, quantise(x.detach(), FORWARD))
    y.backward(g)
    assert torch.equal(x.grad, g)
    x.grad = None
    y = OPERATOR(x, "", BACKWARD, "none")
    assert torch.equal(y, x)
    y.backward(g)
    assert torch.equal(x.grad, quantise(g, BACKWARD))


def test_second_derivatives_go_straight_through():
    x = torch.randn(10, requires_grad=True)
    y = OPERATOR(x, "", BACKWARD, "none")
    (g,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert torch.equal(h, torch.full((10,), 2.0))


def test_captured_programs_keep_it():
    class Model(torch.nn.Module):
        def forward(self, x):
            return OPERATOR(x, FORWARD, BACKWARD, "current") * 2

    program = torch.export.export(Model(), (torch.randn(4),)).module()
    x = torch.randn(4, requires_grad=True)
    program(x).backward(torch.tensor([1.0, 2.03, 3.0, 4.0]))
    assert x.grad.tolist() == [2, 4, 6, 8]


def test_transforms():
    x = torch.randn(3, 4)
    wanted = quantise(x, FORWARD)
    found = torch.func.vmap(lambda v: OPERATOR(v, FORWARD, BACKWARD, "none"))(x)
    assert torch.equal(found, wanted)
    grad = torch.func.grad(lambda v: (OPERATOR(v, FORWARD, "", "none") ** 2).sum())
    assert torch.equal(grad(x), 2 * wanted)
    with pytest.raises(UnsupportedError, match=r"gradients in float8_e5m2.*backward\("):
        torch.func.grad(lambda v: OPERATOR(v, "", BACKWARD, "none").sum())(x)
