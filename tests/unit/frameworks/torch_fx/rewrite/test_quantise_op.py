"""The operator that rounds to 8 bits, forward and backward."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.dtypes import quantise
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import QUANTISE

FORWARD, BACKWARD = "float8_e4m3fn", "float8_e5m2"


def test_values_and_gradients():
    x = torch.randn(100, requires_grad=True)
    g = torch.randn(100)
    y = QUANTISE(x, FORWARD, "", "none")
    assert torch.equal(y, quantise(x.detach(), FORWARD))
    y.backward(g)
    assert torch.equal(x.grad, g)
    x.grad = None
    y = QUANTISE(x, "", BACKWARD, "none")
    assert torch.equal(y, x)
    y.backward(g)
    assert torch.equal(x.grad, quantise(g, BACKWARD))


def test_second_derivatives_go_straight_through():
    x = torch.randn(10, requires_grad=True)
    y = QUANTISE(x, "", BACKWARD, "none")
    (g,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert torch.equal(h, torch.full((10,), 2.0))


def test_captured_programs_keep_it():
    class Model(torch.nn.Module):
        def forward(self, x):
            return QUANTISE(x, FORWARD, BACKWARD, "current") * 2

    program = torch.export.export(Model(), (torch.randn(4),)).module()
    x = torch.randn(4, requires_grad=True)
    program(x).backward(torch.tensor([1.0, 2.03, 3.0, 4.0]))
    assert x.grad.tolist() == [2, 4, 6, 8]


def test_transforms():
    x = torch.randn(3, 4)
    wanted = quantise(x, FORWARD)
    found = torch.func.vmap(lambda v: QUANTISE(v, FORWARD, BACKWARD, "none"))(x)
    assert torch.equal(found, wanted)
    grad = torch.func.grad(lambda v: (QUANTISE(v, FORWARD, "", "none") ** 2).sum())
    assert torch.equal(grad(x), 2 * wanted)
    with pytest.raises(UnsupportedError, match=r"gradients in float8_e5m2.*backward\("):
        torch.func.grad(lambda v: QUANTISE(v, "", BACKWARD, "none").sum())(x)


@pytest.mark.parametrize(
    ("shape", "added", "after", "factor"),
    [
        ((5, 3), (3,), 0, 1.0),
        ((5, 3), (5, 3), 0, 2.0),
        ((5, 3), (1, 3), 0, 0.5),
        ((5, 3), (), 0, 1.0),
        ((2, 3, 4, 4), (3,), 2, 1.0),
    ],
)
def test_the_gradient_of_an_addend_is_not_rounded(shape, added, after, factor):
    def added_to(x, addend):
        return x + addend.reshape([*added, *[1] * after]) * factor

    x, addend, g = torch.randn(shape), torch.randn(added), torch.randn(shape)
    x.requires_grad_(), addend.requires_grad_()
    y = QUANTISE(x * 1, "", BACKWARD, "none", addend, after, factor)
    assert torch.equal(y, x)
    of_x, of_addend = torch.autograd.grad(y, (x, addend), g)
    assert torch.equal(of_x, quantise(g, BACKWARD))
    (exact,) = torch.autograd.grad(added_to(x, addend), addend, g)
    torch.testing.assert_close(of_addend, exact)


def test_batches_of_addends():
    """Samples of a batch have a bias each, or all of them one."""
    x, g = torch.randn(4, 5, 3), torch.randn(4, 5, 3)
    for added in (torch.randn(4, 3), torch.randn(3)):
        addend = added.clone().requires_grad_()
        dims = (0, 0 if addend.dim() > 1 else None)
        y = torch.func.vmap(
            lambda v, b: QUANTISE(v, "", BACKWARD, "none", b, 0, 1.0), in_dims=dims
        )(x, addend)
        assert torch.equal(y, x)
        (result,) = torch.autograd.grad(y, addend, g)
        torch.testing.assert_close(result, g.sum(1 if addend.dim() > 1 else (0, 1)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_the_tangent_of_an_addend_is_added():
    x, addend = torch.randn(2, 3, 4), torch.randn(3)
    tangent = torch.randn(3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(addend, tangent)
        y = QUANTISE(x, "", BACKWARD, "none", dual, 1, 2.0)
        result = torch.autograd.forward_ad.unpack_dual(y).tangent
    torch.testing.assert_close(result, (2 * tangent)[:, None].expand(2, 3, 4))
