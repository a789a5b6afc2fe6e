"""Models converted to float16 under every transform, as in bfloat16.

The watch for a missing loss scale reads a gradient where there is one to read.
"""

import warnings

import pytest

import amprewrite
from amprewrite.errors import AmpWarning

torch = pytest.importorskip("torch")

from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from amprewrite.frameworks.torch_fx.compat import tensor_internals

pytestmark = pytest.mark.filterwarnings(
    "ignore:float16 on a CPU",
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning",  # by forward AD
)

MESSAGE = "training in float16 without a loss scale"
X = torch.linspace(-1, 1, 8).view(2, 4)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).train()


def vectors(model):
    rows = torch.eye(6).view(6, 2, 3)
    weights = list(model.parameters())
    return torch.autograd.grad(model(X), weights, rows, is_grads_batched=True)


def loss_of(model, parameters, x):
    return functional_call(model, parameters, (x,)).square().sum()


def per_sample(model):
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def gradient(x):
        return torch.func.grad(lambda p: loss_of(model, p, x[None]))(parameters)

    return list(torch.vmap(gradient)(X).values())


def second(model):
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)


def compiled(model):
    fast = torch.compile(model, backend="eager")
    return torch.autograd.grad(fast(X).sum(), list(model.parameters()))


def recomputed(model):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(checkpoint(model, x, use_reentrant=False).sum(), x)


def tangents(model):
    x, ones = X.clone().requires_grad_(), torch.ones(2, 4)
    return torch.autograd.functional.jvp(model, x, ones)[1]


FUNCTIONAL = torch.autograd.functional
FUNC = torch.func
USES = {
    "is_grads_batched": vectors,
    "functional_jacobian": lambda m: FUNCTIONAL.jacobian(m, X[0], vectorize=True),
    "functional_hessian": lambda m: FUNCTIONAL.hessian(
        lambda x: m(x).square().sum(), X[0], vectorize=True
    ),
    "functional_jvp": tangents,
    "jacrev": lambda m: FUNC.jacrev(m)(X[0]),
    "jacfwd": lambda m: FUNC.jacfwd(m)(X[0]),
    "hessian": lambda m: FUNC.hessian(lambda x: m(x).square().sum())(X[0]),
    "vjp": lambda m: FUNC.vjp(m, X)[1](torch.ones(2, 3)),
    "jvp": lambda m: FUNC.jvp(m, (X,), (X,)),
    "vmap": lambda m: torch.vmap(m)(X),
    "vmap_of_grad": lambda m: torch.vmap(FUNC.grad(lambda x: m(x).sum()))(X),
    "grad_of_vmap": lambda m: FUNC.grad(lambda x: torch.vmap(m)(x).sum())(X),
    "grad": lambda m: FUNC.grad(lambda x: m(x).sum())(X[0]),
    "per_sample": per_sample,
    "double_backward": second,
    "compile": compiled,
    "checkpoint": recomputed,
}


def leaves(result):
    parts = torch.utils._pytree.tree_leaves(result)
    return [leaf for leaf in parts if isinstance(leaf, torch.Tensor)]


def outcome(use, model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)
        try:
            return leaves(use(model)), None
        except Exception as error:  # noqa: BLE001  # compared with that of bfloat16
            return None, error


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("name", USES)
def test_a_transform_works_in_float16(name, lazy):
    args = None if lazy else ((X[0],) if "functional_j" in name else (X,))
    model = amprewrite.convert(network(), "fp16", args=args)
    results, error = outcome(USES[name], model)
    assert error is None, repr(error)
    assert results is not None
    expected = leaves(USES[name](network()))
    for result, exact in zip(results, expected, strict=True):
        assert torch.allclose(result, exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("name", ["is_grads_batched", "vmap", "jacrev", "grad"])
def test_a_gradient_is_looked_at_after_a_transform(name, lazy):
    model = amprewrite.convert(network(), "fp16", args=None if lazy else (X,))
    outcome(USES[name], model)
    with pytest.warns(AmpWarning, match=MESSAGE):
        model(X).square().mean().backward()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, adjacency):
        return torch.sparse.mm(adjacency, self.layer(x))


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("training", [False, True])
def test_sparse_arguments_work_in_every_policy(policy, lazy, training):
    torch.manual_seed(0)
    model, x = Sparse().train(training), torch.randn(3, 4)
    adjacency = torch.eye(3).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)
        args = None if lazy else (x, adjacency)
        converted = amprewrite.convert(model, policy, args=args)
        result = converted(x, adjacency)
        result.sum().backward()
    assert torch.allclose(result, model(x, adjacency), atol=2e-2)


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
def test_tensors_without_values_are_not_read(lazy):
    args = None if lazy else (X,)
    model = amprewrite.convert(network(), "fp16", args=args)
    with torch.inference_mode():
        assert model(X).shape == (2, 3)
    twin = amprewrite.convert(network(), "bf16", args=args)
    with tensor_internals.fake_mode() as mode:
        fake = mode.from_tensor(X)
        errors = [
            outcome(lambda m: [m(fake).sum().backward()], m)[1] for m in (model, twin)
        ]
    assert (errors[0] is None) == (errors[1] is None), repr(errors[0])


def test_a_model_on_no_device_is_not_read():
    model = amprewrite.convert(network().to("meta"), "fp16")
    model(X.to("meta")).sum().backward()


def test_a_unit_scaled_model_takes_batched_gradients():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return self.body(x).square().mean()

    scaled = amprewrite.unit_scale(Loss(), (X,))
    weights, rows = list(scaled.parameters()), torch.ones(2)
    torch.autograd.grad(scaled(X), weights, rows, is_grads_batched=True)
