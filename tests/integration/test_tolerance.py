"""Plans within a tolerance: what is predicted, what is measured, what it costs."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import ToleranceError

TARGETS = (1e-2, 3e-3, 1e-3)


def mlp() -> tuple[nn.Module, Any]:
    layers = (
        part
        for _ in range(3)
        for part in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    )
    model = nn.Sequential(*layers, nn.Linear(256, 64))
    return model, lambda: (torch.randn(64, 256),)


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return model, lambda: (torch.randn(4, 16, 64),)


def bert() -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config)
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[:, 12:] = 0
    with torch.no_grad():  # of a size at which layers say more than the residual
        for parameter in model.parameters():
            parameter.mul_(4)
    return model, lambda: (torch.randint(0, 100, (4, 16)), mask)


MODELS = {"mlp": mlp, "encoder": encoder, "bert": bert}


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model, arguments = MODELS[name]()
    return model.eval(), arguments


def convert(model: nn.Module, args: Any, bound: Any, policy: str = "bf16") -> Any:
    return amprewrite.convert(
        model, policy, args=args, placement="optimal", tolerance=bound
    )


def error(converted: Any, model: nn.Module, args: Any) -> float:
    def flat(output: Any) -> Any:
        parts = [output] if torch.is_tensor(output) else output.values()
        return torch.cat([part.flatten().double() for part in parts])

    with torch.no_grad():
        right = flat(model(*args))
        return float((flat(converted(*args)) - right).norm() / right.norm())


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_tolerances_are_kept_and_predicted_and_cost_what_they_are_worth(
    name: str, policy: str
) -> None:
    model, arguments = made(name)
    args, fresh = arguments(), arguments()
    costs: list[int] = []
    pairs: set[tuple[float, float]] = set()
    for bound in (1.0, *TARGETS):
        converted = convert(model, args, bound, policy)
        measured = error(converted, model, args)
        assert measured <= bound
        assert error(converted, model, fresh) <= bound
        predicted = converted.plan.predicted_error
        assert (predicted > 0.0) == bool(converted.plan.lowered)
        if converted.plan.lowered:
            assert predicted / 2 < measured < predicted * 2
            pairs.add((predicted, measured))
        costs.append(converted.plan.cost.total_bytes)
    assert costs == sorted(costs)
    assert pairs


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = kind(128, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 128)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0])


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_recurrent_kernels_round_inside_is_predicted(
    kind: Any, policy: str
) -> None:
    torch.manual_seed(0)
    model, args = Recurrent(kind).eval(), (torch.randn(8, 32, 128),)
    converted = convert(model, args, 0.1, policy)
    assert {op.canonical for op in converted.plan.lowered} >= {"linear"}
    assert len(converted.plan.lowered) == 2
    ratio = converted.plan.predicted_error / error(converted, model, args)
    assert 0.8 < ratio < 1.25  # by the roundings of their results alone 0.62 to 0.7


@pytest.mark.parametrize("name", MODELS)
def test_a_tolerance_finds_plans_between_all_low_and_all_full(name: str) -> None:
    model, arguments = made(name)
    args = arguments()
    loose = convert(model, args, 1.0)
    between = convert(model, args, 0.9 * error(loose, model, args))
    assert 0 < len(between.plan.lowered) < len(loose.plan.lowered)
    assert between.plan.cost.total_bytes > loose.plan.cost.total_bytes


def test_the_same_plan_twice() -> None:
    model, arguments = made("encoder")
    args = arguments()
    first = convert(model, args, 1.5e-3)
    torch.randn(3)
    assert convert(model, args, 1.5e-3).plan == first.plan


class Loud(nn.Module):
    """One layer reaches 1e5, and the next brings it back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(512, 512), nn.Linear(512, 512)
        self.c, self.d = nn.Linear(512, 512), nn.Linear(512, 512)
        with torch.no_grad():
            self.b.weight.mul_(4e5)
            self.c.weight.mul_(1e-5)

    def forward(self, x: Any) -> Any:
        return self.d(torch.relu(self.c(self.b(torch.relu(self.a(x))))))


@pytest.mark.filterwarnings("ignore::amprewrite.errors.OverflowWarning")  # as shown
def test_an_overflow_is_kept_full_without_being_named() -> None:
    torch.manual_seed(0)
    model, args = Loud().eval(), (torch.randn(256, 512),)
    with torch.no_grad():
        assert model.b(torch.relu(model.a(*args))).abs().max() > 1e5
        free = amprewrite.convert(model, "fp16", args=args, placement="optimal")
        assert not free(*args).isfinite().all()
    converted = convert(model, args, 1e-2, "fp16")
    plan = converted.plan
    assert plan.by_op["linear_1"].precision == "float32"
    why = plan.by_op["linear_1"].why
    assert why.startswith("its values reach ")
    assert why.endswith("e+05, beyond float16")
    assert why in plan.explain("linear_1")
    assert plan.by_op["linear_2"].why.startswith("the values of %linear_1 reach ")
    assert plan.by_op["linear"].precision == "float16"
    assert plan.by_op["linear_3"].precision == "float16"
    with torch.no_grad():
        assert converted(*args).isfinite().all()
    assert error(converted, model, args) <= 1e-2


def test_a_bound_that_the_policy_makes_impossible_is_an_error() -> None:
    """Outputs that are handed back low are rounded, whatever the ops do."""
    model, arguments = made("mlp")
    with pytest.raises(ToleranceError, match="policy returns low outputs") as caught:
        convert(
            model, arguments(), 1e-4, "params=float32,compute=bfloat16,output=bfloat16"
        )
    assert caught.value.best == pytest.approx(1.7e-3, rel=0.5)


def test_a_saved_plan_keeps_its_prediction(tmp_path: Any) -> None:
    model, arguments = made("mlp")
    args = arguments()
    plan = convert(model, args, 1e-2).plan
    plan.save(tmp_path / "plan.json")
    again = amprewrite.Plan.load(tmp_path / "plan.json")
    assert again.predicted_error == plan.predicted_error
    converted = amprewrite.convert(model, args=args, plan=again)
    assert error(converted, model, args) <= 1e-2


def test_training_keeps_the_tolerance_in_both_modes() -> None:
    model, arguments = made("mlp")
    args = arguments()
    converted = convert(model.train(), args, 1e-2)
    assert error(converted, model, args) <= 1e-2
    converted.eval()
    model.eval()
    assert error(converted, model, args) <= 1e-2


def rooted(h: Any) -> Any:
    return torch.where(h > 0, h.sqrt(), torch.zeros_like(h))


def logged(h: Any) -> Any:
    return torch.where(h > 0, h.log(), h)


class Between(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("function", [rooted, logged])
def test_values_that_a_where_drops_count_for_nothing(function: Any) -> None:
    torch.manual_seed(0)
    model, args = Between(function).eval(), (torch.randn(256, 128),)
    free = amprewrite.convert(model, args=args, placement="optimal")
    bounded = convert(model, args, 1.0)
    assert bounded.plan.cost.total_bytes == free.plan.cost.total_bytes
    ratio = bounded.plan.predicted_error / error(bounded, model, args)
    assert 0.8 < ratio < 1.5
    assert convert(model, args, "autocast").plan.predicted_error < 1.0
    errors = [point.predicted for point in amprewrite.pareto(model, args=args)]
    assert min(errors) == 0.0


def test_a_derivative_that_is_infinite_keeps_a_value_full() -> None:
    def distance(h: Any) -> Any:
        square = (h * h).sum(-1)
        return (square[:, None] + square - 2 * h @ h.T).clamp(min=0).sqrt()

    torch.manual_seed(0)
    model, args = Between(distance).eval(), (torch.randn(128, 128),)
    plan = convert(model, args, 1e-2).plan
    assert plan.predicted_error < 1e-2
    kept = [d for d in plan.decisions if d.why.endswith("in bfloat16 has no bound")]
    assert kept
    assert convert(model, args, "autocast").plan.predicted_error < 1e-2
