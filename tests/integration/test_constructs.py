"""Constructs that a capture or a call can lose: state, hooks, transforms, arguments."""

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from amprewrite.errors import PlanMismatchError
from tests.torch_programs import (
    Program,
    in_full,
    relative_error,
)

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative; a few layers stay under two of them."""

WAYS = pytest.mark.parametrize("way", ["export", "dynamo"])
"""Captured at conversion, or at the first call."""


def converted(model: nn.Module, way: str, *args: Any, **options: Any) -> Any:
    given = {"args": args} if way == "export" else {}
    return amprewrite.convert(model, "bf16", **given, **options)


def linear(width: int = 16) -> nn.Linear:
    return nn.Linear(width, width)


def gradients(model: nn.Module, *args: Any) -> dict[str, Any]:
    """Return the gradients of a square loss, and take them off the parameters."""
    model(*args).square().mean().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def gradient_error(program: nn.Module, model: nn.Module, *args: Any) -> float:
    found, expected = gradients(program, *args), gradients(model, *args)
    assert found.keys() == expected.keys()
    return relative_error(list(found.values()), list(expected.values()))


@pytest.mark.parametrize(
    ("given", "other"), [(1.0, 3.0), ("relu", "tanh"), (True, False), (None, "tensor")]
)
def test_a_value_built_into_the_program_is_not_ignored(given: Any, other: Any) -> None:
    def forward(m: Any, x: Any, value: Any) -> Any:
        y = m.a(x)
        if isinstance(value, str):
            return getattr(torch, value)(y)
        return y if value is None or value is False else y * value

    x = torch.randn(4, 16)
    program = converted(Program(forward, a=linear()).eval(), "export", x, given)
    program(x, given)
    model, value = amprewrite.original(program), x if other == "tensor" else other
    assert relative_error(program(x, value), in_full(model, x, value)) < 2 * ROUNDING
    assert len(program.plans) == 2


def test_a_longer_list_is_captured_and_a_program_alone_refuses_it() -> None:
    x = torch.randn(4, 16)
    model = Program(lambda m, given: sum(m.a(x) for x in given), a=linear()).eval()
    program = converted(model, "export", [x, x])
    for given in ([x, x], [x, x, x]):
        assert relative_error(program(given), in_full(model, given)) < 2 * ROUNDING
    assert len(program.plans) == 2
    alone = amprewrite.convert(torch.export.export(model, ([x, x],)))
    with pytest.raises(PlanMismatchError, match="called with 3 inputs"):
        alone([x, x, x])
    with pytest.raises(PlanMismatchError, match=r"input 1 is None; .* for a tensor"):
        alone([x, None])


@WAYS
def test_a_cast_made_without_gradients_is_not_read_with_them(way: str) -> None:
    """The weight and the input are cast in the no_grad part first."""

    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            target = m.a(x).sigmoid()
        return m.a(x) * target

    model = Program(forward, a=linear()).train()
    x = torch.randn(4, 16)
    assert gradient_error(converted(model, way, x), model, x) < 4 * ROUNDING


@WAYS
def test_spectral_norm_keeps_the_gradient_of_its_weight(way: str) -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(linear()), nn.ReLU())
    x = torch.randn(4, 16)
    expected = gradients(copy.deepcopy(model).train(), x)
    found = gradients(converted(model.train(), way, x), x)
    assert relative_error(list(found.values()), list(expected.values())) < 4 * ROUNDING


@WAYS
@pytest.mark.parametrize("hook", ["module", "tensor"])
def test_hooks_on_gradients_run(way: str, hook: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.a(x)
        if hook == "tensor":
            y.register_hook(lambda grad: grad * 3)
        return m.b(y)

    model: Any = Program(forward, a=linear(), b=linear()).train()
    if hook == "module":
        model.b.register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 3,))
    x = torch.randn(4, 16)
    assert gradient_error(converted(model, way, x), model, x) < 4 * ROUNDING


def test_a_traced_part_gets_its_gradients() -> None:
    untyped: Any = torch.jit
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        traced = untyped.trace(linear(), torch.randn(4, 16))
    model = Program(lambda m, x: m.b(m.a(x)), a=traced, b=linear()).train()
    x = torch.randn(4, 16)
    assert gradient_error(converted(model, "export", x), model, x) < 4 * ROUNDING


def ensemble(m: Any, x: Any) -> Any:
    return torch.vmap(lambda w, t: F.relu(t @ w))(m.w, m.a(x))


def batched(m: Any, x: Any) -> Any:
    return torch.vmap(lambda t: m.b(m.a(t)))(x)


def batched_softmax(m: Any, x: Any) -> Any:
    return m.b(torch.vmap(lambda t: t.softmax(-1) * t.sum())(m.a(x)))


def input_gradient(m: Any, x: Any) -> Any:
    return m.b(torch.func.grad(lambda t: m.a(t).tanh().sum())(x))


def tangent(m: Any, x: Any) -> Any:
    return torch.func.jvp(lambda t: m.b(m.a(t).tanh()), (x,), (torch.ones_like(x),))[1]


@WAYS
@pytest.mark.parametrize(
    "forward", [ensemble, batched, batched_softmax, input_gradient, tangent]
)
def test_function_transforms(way: str, forward: Any) -> None:
    weight = nn.Parameter(torch.randn(5, 16, 8))
    model = Program(forward, a=linear(), b=linear(), w=weight).eval()
    x = torch.randn(5, 3, 16)
    program = converted(model, way, x)
    assert relative_error(program(x), in_full(model, x)) < 2 * ROUNDING
    assert program.plan.lowered


def test_a_loop_over_experts_is_captured_at_the_first_call() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList(linear() for _ in range(4))

        def forward(self, x: Any) -> Any:
            weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
            hot = F.one_hot(chosen, 4).permute(2, 1, 0)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                place, token = torch.where(hot[number])
                part = expert(x[token]) * weights[token, place, None]
                out.index_add_(0, token, part)
            return out

    model, x = Experts().eval(), torch.randn(32, 16) * 4
    program = converted(model, "dynamo", x)
    assert relative_error(program(x), in_full(model, x)) < 8 * ROUNDING
    assert len(program.plan.lowered) >= 4


@WAYS
def test_data_of_a_parameter_is_its_value_without_gradient(way: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x) * m.a.weight.data.norm()

    model = Program(forward, a=linear()).train()
    x = torch.randn(4, 16)
    program = amprewrite.convert(model, args=(x,) if way == "export" else None)
    assert gradient_error(program, model, x) < 4 * ROUNDING


def test_a_sparse_operand_is_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are in beta state
        sparse = torch.eye(16).to_sparse_csr()
    model = Program(lambda m, x: m.a(m.s @ x), a=linear(), s=sparse).eval()
    x = torch.randn(16, 16)
    program = converted(model, "export", x)
    assert relative_error(program(x), in_full(model, x)) < 2 * ROUNDING


def test_a_buffer_that_is_replaced_is_not_advanced_by_the_first_run() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.a(x)
        m.mean = m.mean * 0.9 + y.detach().mean(0) * 0.1
        m.count = m.count + 1
        return y + m.mean

    model: Any = Program(
        forward, a=linear(), mean=torch.zeros(16), count=torch.zeros(1)
    )
    reference, x = copy.deepcopy(model), torch.randn(4, 16)
    program = converted(model.eval(), "dynamo")
    for number in range(1, 3):
        assert relative_error(program(x), in_full(reference, x)) < 2 * ROUNDING
        assert int(program.count) == int(reference.count) == number


@WAYS
def test_low_copies_of_weights_follow_them(way: str) -> None:
    """The weight is read in full too, so that a low copy stands beside it."""

    def forward(m: Any, x: Any) -> Any:
        return m.a(x) + m.a.weight.exp().mean()

    model: Any = Program(forward, a=linear()).eval()
    other, x = copy.deepcopy(model), torch.randn(4, 16)
    with torch.no_grad():
        other.a.weight.neg_()
    program = converted(model, way, x)
    program(x)
    program.load_state_dict(other.state_dict())
    assert relative_error(program(x), in_full(other, x)) < 2 * ROUNDING
    with torch.no_grad():
        program.a.weight.mul_(3)
        other.a.weight.mul_(3)
    assert relative_error(program(x), in_full(other, x)) < 2 * ROUNDING


@WAYS
def test_a_copy_has_a_life_of_its_own(way: str) -> None:
    model = Program(lambda m, x: m.b(m.a(x).tanh()), a=linear(), b=linear()).train()
    x = torch.randn(4, 16)
    program = converted(model, way, x)
    program(x)
    twin = copy.deepcopy(program)
    before = program(x).detach()
    assert gradient_error(twin, model, x) < 4 * ROUNDING
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not bool(twin(x).any())
    assert torch.equal(program(x), before)


class Cache:
    """Grows in place, as caches of decoders do; no tree function knows it."""

    def __init__(self) -> None:
        self.keys: list[Any] = []


@WAYS
def test_arguments_are_used_once(way: str) -> None:
    def forward(m: Any, x: Any, cache: Any) -> Any:
        cache.keys.append(m.a(x))
        return m.b(torch.cat(cache.keys).sum(0)), x.add_(1)

    model = Program(forward, a=linear(), b=linear()).eval()
    x, cache = torch.zeros(4, 16), Cache()
    program = converted(model, way, x, cache)
    assert not bool(x.any())
    assert not cache.keys
    with torch.no_grad():
        program(x, cache)
    assert bool((x == 1).all())
    assert len(cache.keys) == 1


@WAYS
def test_a_gradient_inside_the_forward(way: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        place = x.detach().requires_grad_()
        energy = m.b(m.a(place).tanh()).sum()
        return torch.autograd.grad(energy, place)[0]

    model = Program(forward, a=linear(), b=linear()).eval()
    x = torch.randn(4, 16)
    assert relative_error(converted(model, way, x)(x), model(x)) < 2 * ROUNDING


@WAYS
def test_modules_that_are_not_yet_initialised(way: str) -> None:
    model: Any = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), linear()).eval()
    x = torch.randn(4, 8)
    program = converted(model, way, x)
    found = program(x)
    assert model[0].in_features == 8
    assert relative_error(found, in_full(model, x)) < 2 * ROUNDING
