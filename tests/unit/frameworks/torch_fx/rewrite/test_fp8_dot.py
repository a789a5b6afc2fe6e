"""The operator of products of 8 bits: values and gradients of the emulation."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import FP8_DOT, QUANTISE

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def emulated(x, w, b, scaling):
    left, right = (QUANTISE(t, E4M3, "", scaling) for t in (x, w))
    added = None if b is None else b.detach()
    return QUANTISE(functional.linear(left, right, added), "", E5M2, scaling, b)


def operands(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    made = (torch.randn(*shape), torch.randn(9, shape[-1]), torch.randn(9))
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("scaling", ["none", "current"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 20)])
@pytest.mark.parametrize(("bias", "turned"), [(True, False), (False, True)])
def test_it_is_the_emulation(shape, scaling, *, bias, turned):
    x, w, b = operands(*shape)
    given = (x, w, b) if bias else (x, w)
    added = b if bias else None
    upstream = torch.randn(*shape[:-1], 9)
    y = FP8_DOT(x, w.t() if turned else w, added, E4M3, E5M2, scaling, turned)
    z = emulated(x, w, added, scaling)
    torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(y, given, upstream)
    wanted = torch.autograd.grad(z, given, upstream)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_low_operands_keep_their_dtype():
    x, w, b = operands(4, 7, dtype=torch.bfloat16)
    y = FP8_DOT(x, w, b, E4M3, E5M2, "current", False)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert {t.grad.dtype for t in (x, w, b)} == {torch.bfloat16}


def test_its_shapes():
    x, w, b = (t.detach() for t in operands(3, 5, 7))
    given = (x, w, b, E4M3, E5M2, "current", False)
    torch.library.opcheck(FP8_DOT, given, test_utils="test_faketensor")


def test_what_it_cannot_do_is_refused():
    x, w, _ = operands(4, 7)
    y = FP8_DOT(x, w, None, E4M3, E5M2, "none", False)
    (gradient,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()

    def total(x):
        return FP8_DOT(x, w, None, E4M3, E5M2, "none", False).sum()

    with pytest.raises(UnsupportedError, match=r"torch\.func transforms"):
        torch.func.grad(total)(x)
