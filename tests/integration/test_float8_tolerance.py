"""Plans within a tolerance for policies with formats of 8 bits, in torch."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.policy.model import Contract

# Casts of such small models do not pay.
pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")

FACTOR = 2.0
"""Largest ratio of measured to predicted errors, in both directions.

The models here were within 1.25.
"""


def mlp() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
    return model.eval(), (torch.randn(32, 64),)


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    # In training mode: else torch runs one fused kernel for the layer.
    return nn.TransformerEncoder(layer, 1), (torch.randn(2, 16, 32),)


def error(model: nn.Module, converted: Any, args: Any) -> float:
    """The relative error of a converted model, against float64."""
    with torch.no_grad():
        found = converted(*args).double()
        wide = model.double()(*(x.double() for x in args))
        model.float()
    return float((found - wide).norm() / wide.norm())


@pytest.mark.parametrize(("make", "share"), [(mlp, 0.04), (encoder, 0.01)])
def test_the_error_of_8_bits_is_predicted_and_kept(make: Any, share: float) -> None:
    torch.manual_seed(0)
    model, args = make()
    counts: list[int] = []
    for tolerance in (0.5, share, 1e-3):
        converted = amprewrite.convert(
            model, "fp8", args=args, tolerance=tolerance, training=False
        )
        found, plan = error(model, converted, args), converted.plan
        predicted = plan.predicted_error or 0.0
        counts.append(len(plan.quantised))
        assert found <= tolerance
        assert predicted / FACTOR - 1e-6 <= found <= predicted * FACTOR + 1e-6
    assert counts[0] > counts[1] >= counts[2] == 0
    fallen = [d for d in plan.decisions if "not in 8 bits" in d.why]
    assert len(fallen) == counts[0]


def test_scales_of_weights_that_underflow_are_predicted() -> None:
    """Weights of 1e-4 are zero in e4m3 without a scale: the error is 1."""
    torch.manual_seed(0)
    model = nn.Linear(32, 32, bias=False).eval()
    nn.init.uniform_(model.weight, -1e-4, 1e-4)
    policy = amprewrite.load_policy("unit-fp8")
    args = (torch.randn(8, 32),)
    loose = amprewrite.convert(model, policy, args=args, tolerance=2.0)
    assert loose.plan.quantised
    assert loose.plan.predicted_error == pytest.approx(1.0, rel=0.3)
    tight = amprewrite.convert(model, policy, args=args, tolerance=0.3)
    assert not tight.plan.quantised
    assert error(model, tight, args) < 1e-2


def test_a_policy_without_a_low_dtype_cannot_keep_a_tolerance() -> None:
    model, args = mlp()
    wanted = "policy simulate e4m3/e5m2: it rounds contractions to 8 bits and has no"
    with pytest.raises(UnsupportedError, match=wanted):
        amprewrite.inspect(
            model, "simulate e4m3/e5m2", args=args, tolerance=0.1, placement="optimal"
        )


def test_operands_that_are_written_in_place_stay_out_of_8_bits() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache: Any = nn.Buffer(torch.randn(8, 16))
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            self.cache[0] = x[0]
            return self.layer(x) @ self.cache.t()

    model = Cached().eval()
    with torch.no_grad():
        plan = amprewrite.inspect(
            model, "fp8", args=(torch.randn(4, 16),), tolerance=0.5
        )
    assert [d.op for d in plan.quantised] == ["linear"]
    assert "written in place" in plan.by_op["matmul"].why


def gradients(model: Any, parameters: list[Any], args: Any) -> list[Any]:
    """The gradients of the mean square distance to fixed random numbers, in float64."""
    made = model(*args)
    draws = torch.Generator().manual_seed(0)
    target = torch.randn(made.shape, generator=draws, dtype=torch.float64)
    loss = (made.double() - target).square().mean()
    return [g.double() for g in torch.autograd.grad(loss, parameters)]


def gradient_error(model: nn.Module, converted: Any, args: Any) -> float:
    """The relative error of all gradients of a converted model, against float64."""
    wide = model.double()
    exact = gradients(wide, [*wide.parameters()], [x.double() for x in args])
    held = model.float()
    found = gradients(converted, [*held.parameters()], args)
    pairs = [(one - two, two) for one, two in zip(found, exact, strict=True)]
    difference = sum(float(one.square().sum()) for one, _ in pairs)
    size = sum(float(two.square().sum()) for _, two in pairs)
    return (difference / size) ** 0.5


@pytest.mark.parametrize("make", [mlp, encoder])
def test_the_errors_of_gradients_are_predicted_and_kept(make: Any) -> None:
    torch.manual_seed(0)
    model, args = make()
    counts: list[int] = []
    for tolerance in (0.9, 0.05):
        converted = amprewrite.convert(
            model.train(), "fp8", args=args, tolerance=tolerance, training=True
        )
        found = gradient_error(model, converted, args)
        predicted = converted.plan.gradient_error
        assert predicted is not None
        counts.append(len(converted.plan.quantised))
        assert found <= tolerance
        assert predicted.error / FACTOR <= found <= predicted.error * FACTOR
        assert predicted.worst >= predicted.error
        assert predicted.parameter in dict(model.named_parameters())
    assert counts[0] > counts[1]
    assert "of gradients" in "".join(d.why for d in converted.plan.decisions)
    assert "gradients: predicted relative error" in converted.plan.summary()


def test_gradients_that_become_zero_are_predicted() -> None:
    """Without a scale e4m3 has no gradients below 1e-3: their error is 1."""
    torch.manual_seed(0)
    model = nn.Linear(8, 256).train()
    args = (torch.randn(64, 8),)
    contract = Contract("float8_e4m3fn", "float8_e4m3fn", "none")
    policy = replace(amprewrite.load_policy("fp8"), contract=contract)
    loose = amprewrite.inspect(model, policy, args=args, tolerance=2.0)
    assert loose.quantised
    assert loose.gradient_error is not None
    assert loose.gradient_error.error == pytest.approx(1.0, rel=0.1)
    tight = amprewrite.convert(model, policy, args=args, tolerance=0.3)
    assert not tight.plan.quantised
    assert gradient_error(model, tight, args) < 0.01


def test_gradients_are_not_bounded_without_need() -> None:
    model, args = mlp()
    for policy, tolerance, training in (
        ("bf16", 0.5, True),
        ("fp8", 0.5, False),
        ("fp8", {"output": 0.5}, True),
    ):
        plan = amprewrite.inspect(
            model, policy, args=args, tolerance=tolerance, training=training
        )
        assert plan.gradient_error is None


def test_random_models_have_gradients_that_are_not_bounded() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 8))
    plan = amprewrite.inspect(
        model.train(), "fp8", args=(torch.randn(4, 64),), tolerance=0.5
    )
    assert any("its gradients is not bounded" in line for line in plan.warnings)
    assert plan.gradient_error is None


class _Broken(torch.autograd.Function):
    """An identity with a derivative that fails."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx, grads
        raise RuntimeError


def test_gradients_that_cannot_be_computed_are_refused() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            apply: Any = getattr(_Broken, "apply")  # noqa: B009  # torch does not type it
            return apply(self.layer(x))

    with pytest.raises(UnsupportedError, match="pass training=False to bound"):
        amprewrite.inspect(
            Kept(), "fp8", args=(torch.randn(4, 8),), tolerance=0.5, training=True
        )
