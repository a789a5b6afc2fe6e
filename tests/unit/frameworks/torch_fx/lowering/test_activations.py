"""Activations that a model spells out."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering import activations
from amprewrite.frameworks.torch_fx.lowering.activations import (
    ACTIVATIONS,
    name_activations,
)
from tests.torch_programs import Program, relative_error

aten = torch.ops.aten
X = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
ROOT = math.sqrt(2 / math.pi)


def new_gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0))))


SPELLED = {
    "gelu of tanh": [
        new_gelu,
        lambda x: x * 0.5 * (torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)) + 1),
        lambda x: x * torch.sigmoid(2 * ROOT * (x + 0.044715 * x**3)),
    ],
    "gelu": [
        lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * (x + x * torch.erf(x * 0.70710678)),
        lambda x: x / 2 * (1 - torch.erf(-x * 0.5**0.5)),
    ],
    "silu": [
        lambda x: x * torch.sigmoid(x),
        lambda x: x / (1 + torch.exp(-x)),
        lambda x: x * (1 + (-x).exp()).reciprocal(),
        lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
    ],
}


def records(made: Any) -> list[Any]:
    """Return the records of a converted model of its activations, after a call."""
    return [one for one in made.plan.lowerings if one.name == "activations"]


def converted(function: Any, policy: str = "bf16", **options: Any) -> Any:
    """Return a model with a function between two layers, after a call."""

    def forward(self: Any, x: Any) -> Any:
        return self.second(function(self.first(x)))

    torch.manual_seed(0)
    parts = {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)}
    model = Program(forward, **parts).eval()
    made = amprewrite.convert(model, policy, args=(X,), **options)
    with torch.no_grad():
        made(X)
    return made


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "function"), [(n, f) for n, found in SPELLED.items() for f in found]
)
@pytest.mark.filterwarnings("ignore:float16 on a CPU")
def test_a_formula_is_the_activation_with_its_values(
    name: str, function: Any, policy: str
) -> None:
    made = converted(function, policy)
    (record,) = records(made)
    assert record.what == f"as one op, {name}, rounded once"
    assert len(record.ops) > 1
    plain = converted(function, policy, lowering=False)
    with torch.no_grad():
        wanted = amprewrite.original(made).double()(X.double())
        errors = [relative_error(one(X), wanted) for one in (made, plain)]
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_rounds_once(dtype: Any) -> None:
    x = torch.linspace(-2.5, 4, 2**12).to(dtype)
    program = torch.export.export(Program(lambda _, x: new_gelu(x)), (x,))
    module: Any = program.module(check_guards=False)
    wanted = aten.gelu.default(x.double(), approximate="tanh")
    before = module(x)
    assert len(name_activations(module.graph)) == 1
    module.graph.lint()
    module.recompile()
    normal = wanted.abs() > 2**-10
    errors = [((y - wanted) / wanted)[normal].abs() for y in (module(x), before)]
    once, often = (float(one.max()) for one in errors)
    assert once <= torch.finfo(dtype).eps / 2
    assert often > 4 * once


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.sigmoid(1.702 * x),  # another function
        lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3))),
        lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
        lambda x: torch.sigmoid(x) * x.sum(-1, keepdim=True),
        lambda x: x * torch.sigmoid(x.flip(0)),
        lambda x: x * torch.sigmoid(x[:1]),
        lambda x: x * torch.sigmoid(x).to(torch.float16).to(x.dtype),  # a pin
        lambda x: x * torch.sigmoid(x.to(torch.float8_e4m3fn).to(x.dtype)),
        lambda x: (y := torch.sigmoid(x)) * x + y.exp(),  # read elsewhere
    ],
)
def test_others_stay(function: Any) -> None:
    assert not records(converted(function))


def test_formulas_in_float32_stay_bit_for_bit() -> None:
    made, plain = converted(new_gelu, "off"), converted(new_gelu, "off", lowering=False)
    assert not records(made)
    with torch.no_grad():
        assert torch.equal(made(X), plain(X))


def test_training_programs_keep_them() -> None:
    model = Program(
        lambda self, x: new_gelu(self.first(x)), first=nn.Linear(8, 8)
    ).train()
    made: Any = amprewrite.convert(model, args=(X,))
    made(X).sum().backward()
    assert not records(made)


def test_values_that_are_written_to_stay() -> None:
    def function(x: Any) -> Any:
        gate = torch.sigmoid(x)
        x.mul_(2)
        return gate * x

    def inside(x: Any) -> Any:
        return x * torch.sigmoid(x).mul_(1)

    def by_a_view(x: Any) -> Any:
        view, gate = x[:], torch.sigmoid(x)
        view.mul_(2)
        return gate * x

    for one in function, inside, by_a_view:
        made, plain = converted(one), converted(one, lowering=False)
        assert not records(made)
        with torch.no_grad():
            assert torch.equal(made(X), plain(X))


def check_errors(function: Any, made: Any, exact: Any) -> None:
    """Check that a model is as accurate as the graph of its plan, by float64.

    Args:
        function: What the model has between its layers.
        made: The converted model.
        exact: The same function for float64.
    """
    plain = converted(function, lowering=False)
    with torch.no_grad():
        wanted = amprewrite.original(converted(exact)).double()(X.double())
        errors = [relative_error(one(X), wanted) for one in (made, plain)]
    assert errors[0] <= 1.1 * errors[1]


def test_formulas_of_formulas_are_replaced_each() -> None:
    def function(x: Any) -> Any:
        return new_gelu(new_gelu(x) * torch.sigmoid(new_gelu(x)))

    made = converted(function)
    names = [record.what.split(", ")[1] for record in records(made)]
    assert sorted(set(names)) == ["gelu of tanh", "silu"]  # of merged ops
    check_errors(function, made, function)


def test_a_formula_in_float32_of_low_values_has_a_float32_result() -> None:
    def function(x: Any) -> Any:
        return new_gelu(x.float()) - 0.25

    made = converted(function)
    assert len(records(made)) == 1
    check_errors(function, made, lambda x: new_gelu(x) - 0.25)


def test_a_formula_is_evaluated_once_for_all_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    evaluate = activations._activation
    monkeypatch.setattr(
        activations, "_activation", lambda one: seen.append(1) or evaluate(one)
    )

    def forward(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = new_gelu(layer(x))
        return x

    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    made: Any = amprewrite.convert(Program(forward, layers=layers).eval(), args=(X,))
    with torch.no_grad():
        made(X)
    assert len(records(made)) == 6
    assert len(seen) < 20


def test_symbolic_extents_are_no_hindrance() -> None:
    model = Program(lambda self, x: new_gelu(self.first(x)), first=nn.Linear(8, 8))
    batch = torch.export.Dim("batch", min=2, max=2**10)
    made: Any = amprewrite.convert(
        model.eval(), args=(X,), dynamic_shapes={"args": ({0: batch},)}
    )
    with torch.no_grad():
        for rows in X, X[:5]:
            made(rows)
    assert len(records(made)) == 1


def test_a_graph_without_values_is_left_alone() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.mul.Tensor, (x, x)))
    assert name_activations(graph) == ()


def test_each_activation_keeps_nan() -> None:
    for one in ACTIVATIONS:
        assert one(torch.tensor([torch.nan, 1.0])).isnan().tolist() == [True, False]
