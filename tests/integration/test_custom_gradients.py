"""Backward passes that are the model's own: converted models keep them.

torch.export drops the backward of an ``autograd.Function`` without a word, so that what
has one is captured through dynamo. Each program here is captured in both ways.
"""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

import amprewrite
from tests.torch_programs import Program, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated")
"""Dynamo's own doing."""

BOUND = 16 * 2.0**-8
"""Relative error of gradients: some roundings to bfloat16, and sums over 16 rows."""


class Reverse(torch.autograd.Function):
    """Passes the value and turns the gradient around; has a number as argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, by: float) -> Any:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -ctx.by * grads[0], None


class Clip(torch.autograd.Function):
    """Clips the gradient, and lets none pass where the value was large."""

    @staticmethod
    def forward(ctx: Any, x: Any, low: float, high: float) -> Any:
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0].clamp(ctx.low, ctx.high) * (x.abs() < 10), None, None


class Split(torch.autograd.Function):
    """Several outputs, one without gradient; looks at which gradients are needed."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, count: int) -> Any:
        del count
        y = x * weight
        positive = weight > 0
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(positive)
        return y, positive, y.sin()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        total = grads[0] + grads[2] * (x * weight).cos()
        to_x = total * weight * 3 if ctx.needs_input_grad[0] else None
        to_weight = (total * x).sum(0) * 5 if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None


class Product(torch.autograd.Function):
    """A product with weights, whose gradient is doubled."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, grads[0].t() @ x * 2


class Separate(torch.autograd.Function):
    """The newer form, with its own setup of the context."""

    @staticmethod
    def forward(x: Any, by: float) -> Any:
        return x * by, x.tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (held,) = ctx.saved_tensors
        return grads[0] * ctx.by * 7 + grads[1] * held, None


class Opaque(torch.autograd.Function):
    """Computed by NumPy, which no tracer follows."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return torch.from_numpy(grads[0].numpy() * 3)


reverse, product = Reverse.apply, Product.apply
"""Bound once, as many models do: the class is not looked up again."""


def linear() -> Any:
    return nn.Linear(8, 8)


def two(body: Callable[..., Any]) -> Any:
    """Return a model of two layers and a weight, with ``body`` between the layers."""
    weight = nn.Parameter(torch.randn(8, 8))

    def forward(m: Any, x: Any) -> Any:
        return m.last(body(m.first(x), m.weight))

    return Program(forward, first=linear(), last=linear(), weight=weight)


def split(x: Any, weight: Any) -> Any:
    y, positive, sine = Split.apply(x, weight[0], 3)
    return torch.where(positive, y, sine)


def in_modules() -> Any:
    inner = Program(lambda m, x: Clip.apply(m.a(x), -0.1, 0.1), a=linear())
    outer = Program(lambda m, x: m.inner(Reverse.apply(x, 2.0)), inner=inner)
    return nn.Sequential(linear(), nn.Sequential(outer, nn.Tanh()), linear())


MODELS: dict[str, Callable[[], Any]] = {
    "a number as argument": lambda: two(lambda x, _: Reverse.apply(x, 0.3)),
    "saved tensors": lambda: two(lambda x, _: Clip.apply(x, -0.01, 0.02)),
    "several outputs": lambda: two(split),
    "a weight": lambda: two(Product.apply),
    "setup_context": lambda: two(lambda x, _: sum(Separate.apply(x, 2.0))),
    "used twice": lambda: two(
        lambda x, w: Product.apply(Product.apply(x, w).tanh(), w)
    ),
    "several functions": lambda: two(
        lambda x, w: Reverse.apply(Clip.apply(Product.apply(x, w), -0.1, 0.1), 0.5)
    ),
    "in modules": in_modules,
    "apply bound before": lambda: two(lambda x, w: reverse(product(x, w), 0.3)),
    "what no tracer follows": lambda: two(lambda x, _: Opaque.apply(x)),
    "in a checkpoint": lambda: two(
        lambda x, w: checkpoint(Product.apply, x, w, use_reentrant=False)
    ),
    "in a reentrant checkpoint": lambda: two(
        lambda x, _: checkpoint(lambda y: reverse(y.tanh(), 0.3), x, use_reentrant=True)
    ),
    "a checkpoint": lambda: two(
        lambda x, w: checkpoint(lambda y: (y @ w).tanh(), x, use_reentrant=False)
    ),
    "a reentrant checkpoint": lambda: two(
        lambda x, w: checkpoint(lambda y: (y @ w).tanh(), x, use_reentrant=True)
    ),
    "a checkpoint with dropout": lambda: two(
        lambda x, w: checkpoint(
            lambda y: nn.functional.dropout(y @ w, 0.5), x, use_reentrant=False
        )
    ),
}


def gradients(run: Any, model: Any, x: Any) -> dict[str, Any]:
    """Return the gradients of ``model`` after a backward through ``run``."""
    model.zero_grad()
    torch.manual_seed(3)
    run(x).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_gradients_agree(model: Any, run: Any, x: Any) -> None:
    expected = {n: g.clone() for n, g in gradients(model, model, x).items()}
    for _ in range(2):
        found = gradients(run, model, x)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            assert relative_error(gradient, expected[name]) < BOUND, name


OF_NUMPY = pytest.param(
    "what no tracer follows",
    marks=pytest.mark.xfail(
        torch.__version__.startswith("2.11."),
        reason="dynamo of torch 2.11 itself gives zeros for a result of NumPy",
    ),
)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "name", [OF_NUMPY if name == OF_NUMPY.values[0] else name for name in MODELS]
)
def test_gradients_are_those_of_the_model(name: str, *, at_once: bool) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    model, x = MODELS[name]().train(), torch.randn(16, 8)
    program = amprewrite.convert(model, args=(x,) if at_once else None)
    assert_gradients_agree(model, program, x)
    assert sum(d.precision == "bfloat16" for d in program.plan.decisions) >= 2


def test_a_weight_without_gradient_gets_none() -> None:
    model, x = two(split).train(), torch.randn(16, 8)
    model.weight.requires_grad_(requires_grad=False)
    program = amprewrite.convert(model, args=(x,))
    assert_gradients_agree(model, program, x)
    assert model.weight.grad is None


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_converted_model_may_be_checkpointed(
    *, reentrant: bool, at_once: bool
) -> None:
    model = nn.Sequential(linear(), nn.Dropout(0.5), linear()).train()
    x = torch.randn(16, 8, requires_grad=True)
    part = amprewrite.convert(model, args=(x,) if at_once else None)
    part(x)  # captured, if it was not: captures draw random numbers

    def run(value: Any) -> Any:
        return checkpoint(part, value, use_reentrant=reentrant)

    expected = {n: g.clone() for n, g in gradients(part, model, x).items()}
    for name, gradient in gradients(run, model, x).items():
        assert torch.equal(gradient, expected[name]), name


def torch_functions() -> dict[str, Callable[[Any], Any]]:
    """Ops of torch that are an ``autograd.Function`` with a backward of their own."""
    normal = nn.CrossMapLRN2d(2)
    loss = getattr(nn.functional, "linear_cross_entropy", None)
    found = {"CrossMapLRN2d": lambda h: normal(h.view(-1, 2, 2, 2))}
    if loss is not None:  # since torch 2.13
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
        classes = torch.arange(16) % 8
        found["linear_cross_entropy"] = lambda h: loss(
            h, torch.eye(8), classes, options=options
        )
    return found


@pytest.mark.parametrize("way", ["export", "dynamo"])
@pytest.mark.parametrize("name", ["CrossMapLRN2d", "linear_cross_entropy"])
def test_gradients_of_functions_of_torch_itself_are_kept(name: str, way: str) -> None:
    if name not in torch_functions():
        pytest.skip("not in this version of torch")
    op = torch_functions()[name]
    model = Program(lambda m, x: op(m.a(x)), a=nn.Linear(8, 8))
    x = torch.randn(16, 8)
    args = (x,) if way == "export" else None
    program = amprewrite.convert(model, args=args, training=True)
    found: list[Any] = []
    for each in (model, program):
        output = each(x)
        steps = torch.arange(output.numel()).view(output.shape).cos()
        wanted = [*model.a.parameters()]
        found.append(torch.autograd.grad((output * steps).sum(), wanted))
    assert relative_error(found[1], found[0]) < BOUND
