"""One factor forward and another backward, through everything that torch composes."""

from typing import Any

import pytest

from amprewrite.errors import ArgumentError, UnsupportedError

pytest.importorskip("torch")

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from amprewrite.unit_scaling.torch import scale, scale_bwd, scale_fwd

IMPORTS_OF_JVP = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)
"""torch compiles decompositions of its own at the first tangent."""
X = torch.linspace(-2, 2, 15).reshape(3, 5)


class Model(torch.nn.Module):
    """Factors around a nonlinearity; one gradient factor follows the batch."""

    def forward(self, x):
        rows = scale_bwd(x, x.shape[0] ** -0.5)
        return scale_fwd(torch.tanh(scale_bwd(rows, 3.0)), 2.0)


def slope(x):
    """The gradient of the sum of what the model gives, by hand."""
    return 3.0 * (1 - torch.tanh(x) ** 2) * x.shape[0] ** -0.5


def gradient(function, x) -> Any:
    x = x.clone().requires_grad_()
    function(x).sum().backward()
    return x.grad


def total(x):
    return Model()(x).sum()


def test_a_forward_factor_leaves_the_gradient():
    x = X.clone().requires_grad_()
    y = scale_fwd(x, 3.0)
    assert torch.equal(y, 3 * X)
    (found,) = torch.autograd.grad(y, x, torch.ones_like(x))
    assert torch.equal(found, torch.ones_like(x))


def test_a_backward_factor_leaves_the_value():
    x = X.clone().requires_grad_()
    y = scale_bwd(x, 3.0)
    assert torch.equal(y, X)
    (found,) = torch.autograd.grad(y, x, torch.ones_like(x))
    assert torch.equal(found, 3 * torch.ones_like(x))


def test_a_second_derivative_has_the_factor_once_more():
    x = X.clone().requires_grad_()
    (once,) = torch.autograd.grad(scale(x, 1.0, 3.0).pow(2).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert torch.equal(twice, torch.full_like(x, 18.0))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_keeps_the_gradient_at_every_batch(strict):
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(Model(), (X,), dynamic_shapes=batch, strict=strict)
    module = program.module()
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("amprewrite.scale.default") == 3
    for x in (X, torch.ones(7, 5)):
        assert torch.allclose(gradient(module, x), slope(x))
    assert torch.allclose(torch.func.grad(lambda x: module(x).sum())(X), slope(X))


def test_a_compiled_model_keeps_the_gradient_at_every_batch():
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": True}
    compiled = torch.compile(Model(), **options)
    for x in (X, torch.ones(7, 5)):
        assert torch.allclose(gradient(compiled, x), slope(x))


def test_a_compiler_sees_a_multiplication():
    code = make_fx(lambda x: scale(x, 2.0, 3.0))(X).code
    assert "aten.mul" in code
    assert "amprewrite" not in code


@IMPORTS_OF_JVP
def test_transforms_of_functions():
    by_row = torch.vmap(torch.func.grad(lambda row: total(row[None])))
    assert torch.allclose(by_row(X), slope(X) * len(X) ** 0.5)
    assert torch.allclose(torch.func.grad(total)(X), slope(X))
    assert torch.allclose(torch.vmap(Model())(X[None]), Model()(X)[None])
    pushed: Any = torch.func.jvp(Model(), (X,), (torch.ones_like(X),))
    tangent = pushed[1]
    assert torch.allclose(tangent, slope(X))
    inside = torch.func.grad(lambda x: torch.vmap(Model())(x[None]).sum())
    assert torch.allclose(inside(X), slope(X))


@IMPORTS_OF_JVP
def test_forward_mode():
    with forward_ad.dual_level():
        made = forward_ad.make_dual(X, torch.ones_like(X))
        tangent: Any = forward_ad.unpack_dual(Model()(made)).tangent
    assert torch.allclose(tangent, slope(X))


def test_an_infinity_passes_a_transform_as_it_is():
    x = torch.tensor([1.0, float("inf")])
    _, value = torch.func.grad_and_value(lambda x: scale_fwd(x, 2.0).sum())(x)
    assert value == float("inf")


def test_without_gradients_it_multiplies():
    with torch.inference_mode():
        assert torch.equal(scale(X, 3.0, 2.0), 3 * X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_factor_is_not_rounded_to_a_low_dtype(dtype):
    x = torch.linspace(-8, 8, 513, dtype=torch.float32).to(dtype)
    factor = 1.3920361404483097
    wide = torch.promote_types(dtype, torch.float32)
    assert torch.equal(scale_fwd(x, factor), (x.to(wide) * factor).to(dtype))
    found = gradient(lambda x: scale_bwd(x, factor), x)
    assert torch.equal(found, torch.full_like(x, factor))


def test_a_complex_tensor_is_refused():
    with pytest.raises(UnsupportedError, match=r"complex tensor .*view_as_real"):
        scale_fwd(X.to(torch.complex64), 2.0)


def test_integers_are_refused():
    with pytest.raises(ArgumentError, match=r"torch\.int64; want a float tensor"):
        scale_bwd(torch.arange(3), 2.0)
