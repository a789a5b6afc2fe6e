"""Activations and sums in the kernel of the layer before them."""

import copy
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

import amprewrite
from tests.packing import change_all_layouts, pack_float32, stand_in
from tests.torch_programs import Program, relative_error

X = torch.linspace(-2, 2, 8 * 64).reshape(8, 64).sin()


def program(forward: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    return Program(forward, a=nn.Linear(64, 64), b=nn.Linear(64, 64)).eval()


def converted(model: Any, policy: str = "off", **options: Any) -> Any:
    made: Any = amprewrite.convert(model, policy, args=(X,), **options)
    return made


def fused(made: Any) -> list[tuple[str, ...]]:
    return [one.ops for one in made.plan.lowerings if one.name == "fused"]


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "gelu": functional.gelu,
    "gelu ": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.3),
    "hardtanh": lambda x: functional.hardtanh(x, max_val=0.5),
}


def test_activations_are_fused_as_accurately_in_float32(monkeypatch) -> None:
    pack_float32(monkeypatch)

    def forward(m: Any, x: Any) -> Any:
        return [
            run(m.a(x * scale)) for scale, run in enumerate(ACTIVATIONS.values(), 1)
        ]

    model = program(forward)
    made, plan = converted(model), converted(model, lowering=False)
    assert [ops[1].rstrip("_0123456789") for ops in fused(made)] == [
        name.strip() for name in ACTIVATIONS
    ]
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(X.double())
        for name, found, before, exact in zip(
            ACTIVATIONS, made(X), plan(X), wanted, strict=True
        ):
            error = relative_error(found, exact)
            assert error <= 1.5 * relative_error(before, exact) + 2e-7, name


@pytest.mark.parametrize("name", ["gelu ", "silu", "relu", "hardtanh"])
@pytest.mark.parametrize(
    "shape", [lambda y: y.view(2, 4, 64), lambda y: y.view(-1, 8, 64)]
)
def test_a_view_between_a_layer_and_its_activation_is_no_hindrance(
    monkeypatch, name: str, shape: Callable[[Any], Any]
) -> None:
    stand_in(monkeypatch)

    def forward(m: Any, x: Any) -> Any:
        return m.b(ACTIVATIONS[name](shape(m.a(x))).flatten(0, -2))

    model = program(forward)
    made = converted(model, "bf16")
    plain = converted(model, "bf16", lowering=False)
    with torch.no_grad():
        found, wanted = made(X), plain(X)
        exact = copy.deepcopy(model).double()(X.double())
    assert [ops[-1].rstrip("_0123456789") for ops in fused(made)] == [name.strip()]
    assert found.shape == wanted.shape
    assert relative_error(found, exact) <= 1.1 * relative_error(wanted, exact)


def test_a_view_that_others_read_stays_where_it_is(monkeypatch) -> None:
    stand_in(monkeypatch)

    def forward(m: Any, x: Any) -> Any:
        seen = m.a(x).view(2, 4, 64)
        return functional.gelu(seen), seen.sum()

    def written(m: Any, x: Any) -> Any:
        seen = functional.gelu(m.a(x).view(2, 4, 64))
        seen[0] = 0
        return m.b(seen)

    for one in forward, written:
        made = converted(program(one), "bf16")
        plain = converted(program(one), "bf16", lowering=False)
        with torch.no_grad():
            pairs = zip([made(X)], [plain(X)], strict=True)
            for found, wanted in pairs:
                torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
        assert not fused(made)


def test_values_that_are_not_finite_pass_activations_as_in_the_plan(monkeypatch):
    pack_float32(monkeypatch)
    change_all_layouts(monkeypatch)

    def forward(m: Any, x: Any, y: Any) -> Any:
        runs = ACTIVATIONS.values()
        images = [run(m.c(x + scale)) for scale, run in enumerate(runs)]
        other = m.d(y)
        sums = [run(m.c(x - scale - 1) + other) for scale, run in enumerate(runs)]
        rows = [run(m.a(x.flatten(2) + scale)) for scale, run in enumerate(runs)]
        return *images, *sums, *rows

    model = program(forward)
    model.c = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    model.d = nn.Conv2d(8, 8, 1, groups=8)
    x, y = torch.zeros(1, 8, 8, 8), torch.zeros(1, 8, 8, 8)
    x[0, :, 1, 1], x[0, :, 4, 4], x[0, :, 4, 7] = torch.nan, torch.inf, -torch.inf
    y[0, :, 1, 7], y[0, :, 7, 1] = torch.nan, torch.inf
    made, plan = (
        amprewrite.convert(model, "off", args=(x, y), lowering=on)
        for on in (True, False)
    )
    names = [name.rstrip("_0123456789") for ops in fused(made) for name in ops[1:]]
    assert [names.count(n) for n in ("add", "relu", "hardtanh")] == [10, 3, 3]
    with torch.no_grad():
        pairs = zip(made(x, y), plan(x, y), strict=True)
        for name, (found, given) in zip(cycle(ACTIVATIONS), pairs, strict=False):
            wanted = given
            if name == "gelu":  # torch's gives NaN or infinity for it, by layout
                infinite = given.isnan() & found.isposinf()
                wanted = torch.where(infinite, found, given)
            torch.testing.assert_close(
                found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True
            )


def test_what_others_read_is_not_fused(monkeypatch) -> None:
    pack_float32(monkeypatch)

    def forward(m: Any, x: Any) -> Any:
        twice = m.a(x)  # read by two
        alone = m.b(x)  # an output
        late = m.a(x)  # added to what comes after it
        wide = m.b(x)[:4]  # a view
        written = m.a(x)
        other = x * 2
        layer = m.b(x)
        other[:4].zero_()
        total = layer + other  # which was written to, through a view
        return (
            twice.relu() + twice.tanh(),
            alone,
            late + x.exp().sqrt(),
            wide.relu(),
            written.mul_(2).relu(),
            total,
            m.b(x) + m.a.bias,  # of another shape
            torch.add(m.b(x), x, alpha=2),
        )

    model = program(forward)
    made, plan = converted(model), converted(model, lowering=False)
    assert fused(made) == []
    with torch.no_grad():
        for found, wanted in zip(made(X), plan(X), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_sum_is_fused_into_the_later_layer(monkeypatch) -> None:
    pack_float32(monkeypatch)
    model = program(lambda m, x: x.tanh() + m.b(x + m.a(x)))
    made, plan = converted(model), converted(model, lowering=False)
    assert fused(made) == [("linear", "add"), ("linear_1", "add_1")]
    with torch.no_grad():
        torch.testing.assert_close(made(X), plan(X), rtol=1e-5, atol=1e-5)
    assert torch.equal(made(X), plan(X))  # with gradients


GELU_FULL = ({"op": "gelu", "class": "deny"},)


@pytest.mark.parametrize("overrides", [(), GELU_FULL])
def test_low_layers_round_once(overrides, monkeypatch) -> None:
    """A low layer, a cast, an activation in float32 and a cast are one kernel."""
    stand_in(monkeypatch)
    model = program(lambda m, x: m.b(functional.gelu(m.a(x))))
    made = converted(model, "bf16", overrides=overrides)
    plan = converted(model, "bf16", overrides=overrides, lowering=False)
    names = ("linear", "gelu")
    if overrides:
        assert fused(made)[0][::2] == names
        assert len(fused(made)[0]) == 4
    else:
        assert fused(made) == [names]
    exact = copy.deepcopy(model).double()
    for held in exact.parameters():
        held.data = held.data.to(torch.bfloat16).double()
    with torch.no_grad():
        wanted = exact(X.to(torch.bfloat16).double())
        error = relative_error(made(X), wanted)
        assert error < 0.95 * relative_error(plan(X), wanted)
        view = made.a.weight[0]  # now it stays plain: the ops of the plan run
        assert torch.equal(made(X), plan(X))
        del view


def test_an_activation_in_float32_that_is_read_so_is_not_fused(monkeypatch) -> None:
    stand_in(monkeypatch)
    model = program(lambda m, x: functional.gelu(m.a(x)).softmax(-1))
    assert fused(converted(model, "bf16")) == []
