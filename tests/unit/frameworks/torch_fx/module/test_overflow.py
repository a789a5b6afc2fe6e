"""Infinities of a narrow dtype are found and said when a model is converted."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import AmpWarning
from amprewrite.frameworks.torch_fx.module import overflow
from tests.torch_programs import Program

pytestmark = pytest.mark.filterwarnings("ignore:float16 on a CPU")


def layer(scale: float = 1.0) -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(8, 8)
    with torch.no_grad():
        made.weight.mul_(scale)
    return made


def large() -> nn.Module:
    def program(s: Any, x: Any) -> Any:
        return s.b(s.a(x) * 1000) / 1e9

    return Program(program, a=layer(3e3), b=layer()).eval()


def masked(scale: float) -> nn.Module:
    def program(s: Any, x: Any) -> Any:
        return s.a(x * scale).masked_fill(x > 0, -torch.inf).softmax(-1)

    return Program(program, a=layer()).eval()


X = torch.linspace(-2, 3, 32).view(4, 8)


def warned(model: nn.Module, policy: str = "fp16", **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        converted = amprewrite.convert(model, policy, args=(X,), **options)
    found = [str(w.message) for w in caught if "not finite" in str(w.message)]
    assert found == [w for w in converted.plan.warnings if "not finite" in w]
    return found


@pytest.mark.parametrize("training", [True, False])
def test_the_first_op_beyond_the_range_is_named(training: bool) -> None:  # noqa: FBT001  # a case
    model = large().train(training)
    with pytest.warns(AmpWarning, match=r"finite in float32: the first is mul \("):
        converted = amprewrite.convert(model, "fp16", args=(X,))
    assert not converted(X).isfinite().all()
    assert model(X).isfinite().all()


def test_the_first_op_in_a_region_without_gradients_is_named() -> None:
    def program(s: Any, x: Any) -> Any:
        with torch.no_grad():
            y = s.b(s.a(x) * 1000)
        return y / 1e9 + s.b(x)

    model = Program(program, a=layer(3e3), b=layer()).eval()
    (message,) = warned(model)
    name = message.split("the first is ")[1].split(" ")[0]
    assert name.endswith(".mul")
    assert warned(model, overrides=[{"op_name": name, "class": "deny"}]) != [message]


def test_an_input_beyond_the_range_is_found_where_it_is_read() -> None:
    assert "the first is linear (a, " in warned(masked(1e6))[0]


def test_a_model_without_infinities_is_not_warned_of() -> None:
    assert warned(masked(1.0)) == []
    assert warned(layer().eval()) == []


def test_a_model_that_is_infinite_by_itself_is_not_warned_of() -> None:
    assert warned(Program(lambda s, x: s.a(x) / 0, a=layer()).eval()) == []


def test_a_tolerance_gives_finite_outputs_and_no_warning() -> None:
    assert warned(large(), placement="optimal", tolerance=1e-2) == []


def test_denying_what_is_named_helps() -> None:
    model, rules = large(), list[dict[str, str]]()
    while found := warned(model, overrides=rules):
        name = found[0].split("the first is ")[1].split(" ")[0]
        assert {"op_name": name, "class": "deny"} not in rules
        rules.append({"op_name": name, "class": "deny"})
    assert 0 < len(rules) < 4
    converted = amprewrite.convert(model, "fp16", args=(X,), overrides=rules)
    assert converted(X).isfinite().all()


def test_the_runs_leave_no_trace() -> None:
    model = nn.Sequential(layer(3e3), nn.BatchNorm1d(8), nn.Dropout(), layer(1e4))
    state = {name: t.clone() for name, t in model.train().state_dict().items()}
    random, given = torch.get_rng_state(), X.clone()
    amprewrite.convert(model, "fp16", args=(given,))
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(given, X)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


SEEN: list[Any] = []


@torch.library.custom_op("amprewrite_test_overflow::watched", mutates_args=())
def watched(x: Tensor) -> Tensor:
    SEEN.append(x)
    return x.clone()


@watched.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("policy", "is_run"),
    [("fp16", True), ("bf16", False), ("promote", False), ("off", False)],
)
def test_other_dtypes_cost_no_run(policy: str, *, is_run: bool) -> None:
    model = Program(lambda s, x: watched(s.a(x)), a=layer()).eval()
    SEEN.clear()
    assert warned(model, policy) == []
    assert bool(SEEN) == is_run


def test_nothing_is_run_without_values() -> None:
    model = nn.Linear(8, 8, device="meta").eval()
    x = torch.ones(4, 8, device="meta")
    converted = amprewrite.convert(model, "fp16", args=(x,))
    assert not any("finite" in line for line in converted.plan.warnings)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # torch's own
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_values_of_sparse_tensors_are_looked_at(layout: Any) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    sparse = dense.to_sparse(layout=layout)
    assert overflow._is_finite(sparse)
    assert not overflow._is_finite(sparse * float("inf"))
