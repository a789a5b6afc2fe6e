"""What only a run of both programs shows is said when a model is converted."""

import itertools
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    ExactArgumentWarning,
    LoopWarning,
    OverflowWarning,
)
from amprewrite.frameworks.torch_fx import run_check
from amprewrite.frameworks.torch_fx.executor import Executor
from amprewrite.frameworks.torch_fx.run_check import extent_of
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
    with pytest.warns(AmpWarning, match=r"^mul \(.* is not finite in float16"):
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
    name = message.split(" ")[0]
    assert name.endswith(".mul")
    assert warned(model, overrides=[{"op_name": name, "class": "deny"}]) != [message]


def test_an_input_beyond_the_range_is_found_where_it_is_read() -> None:
    assert warned(masked(1e6))[0].startswith("linear (a, ")


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
        rule = {"op_name": found[0].split(" ")[0], "class": "deny"}
        assert rule not in rules
        assert json.dumps([rule]) in found[0]
        rules.append(rule)
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


RUNS = itertools.count()  # which a run that leaves no trace does not put back


@torch.library.custom_op("amprewrite_test_overflow::watched", mutates_args=())
def watched(x: Tensor) -> Tensor:
    next(RUNS)
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
    before = next(RUNS)
    assert warned(model, policy) == []
    assert (next(RUNS) > before + 1) == is_run


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
    assert extent_of(sparse, sparse) is None
    extent = extent_of(sparse, sparse * float("inf"))
    assert extent is not None
    assert (extent.lost, extent.largest) == (2, 2.0)


def test_a_number_that_stands_for_infinity_may_become_one() -> None:
    full = torch.tensor([1.0, torch.finfo(torch.float32).min])
    assert extent_of(full, torch.tensor([1.0, -torch.inf])) is None
    extent = extent_of(full, torch.tensor([torch.nan, -torch.inf]))
    assert extent is not None
    assert (extent.lost, extent.size) == (1, 2)


# --- defects that leave outputs finite, and programs without any ---------------------

KINDS = (OverflowWarning, ExactArgumentWarning, LoopWarning)


def heard(run: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [w for w in caught if issubclass(w.category, KINDS)]


def unit_length(s: Any, x: Any) -> Any:
    y = s.a(x) * 300
    return y * torch.rsqrt(torch.einsum("bi,bi->b", y, y)[:, None])


def normalised(s: Any, x: Any) -> Any:
    return torch.sigmoid(s.b(s.a(x * 100) * 1e4).mean(-1))


def fourier(s: Any, x: Any) -> Any:
    return torch.sin((x @ s.w) @ s.b.weight * 30)


BORDERS = torch.linspace(-200, 200, 4000)

DEFECTS: dict[str, tuple[str, Callable[..., Any], type[AmpWarning], str]] = {
    "rsqrt swallows": ("fp16", unit_length, OverflowWarning, "einsum ("),
    "sigmoid swallows": ("fp16", normalised, OverflowWarning, " elements, of up to "),
    "a phase": ("autocast-cpu", fourier, ExactArgumentWarning, "radians"),
    "codes": (
        *("autocast-cpu", lambda s, x: s.b(x * 50).round()),
        *(ExactArgumentWarning, "steps"),
    ),
    "indices": (
        *("autocast-cpu", lambda s, x: s.b(x * 500).long()),
        *(ExactArgumentWarning, "steps"),
    ),
    "bins": (
        *("autocast-cpu", lambda s, x: torch.bucketize(s.b(x * 50), BORDERS)),
        *(ExactArgumentWarning, "bins"),
    ),
    "a period": (
        *("autocast-cpu", lambda s, x: s.b(x * 50) % 0.5),
        *(ExactArgumentWarning, "multiples of the divisor"),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_defect_is_told_once_and_cured(name: str, *, at_once: bool) -> None:
    policy, program, kind, words = DEFECTS[name]
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)) * 3
    model = Program(program, a=layer(3.0), b=layer(3.0), w=weight).eval()

    def converted(rules: Any) -> list[warnings.WarningMessage]:
        def run() -> None:
            options: Any = {"args": (X,)} if at_once else {}
            module = amprewrite.convert(model, policy, overrides=rules, **options)
            module(X)
            module(X)

        return heard(run)

    rules: list[Any] = []
    (found,) = converted(rules)
    assert found.category is kind
    assert words in str(found.message)
    assert ".py:" in str(found.message)
    while found is not None and len(rules) < 8:  # a chain of ops
        rules += json.loads(
            str(found.message).partition("overrides=")[2].split("]")[0] + "]"
        )
        found = next(iter(converted(rules)), None)
    assert found is None


def attention(s: Any, x: Any) -> Any:
    scores = s.a(x) @ s.b(x).T
    mask = torch.full_like(scores, torch.finfo(torch.float32).min).triu(1)
    return (scores + mask).softmax(-1) @ s.a(x)


HARMLESS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a mask": ("fp16", attention),
    "a layer": ("fp16", lambda s, x: s.b(s.a(x).relu())),
    "infinite itself": ("fp16", lambda s, x: s.a(x) / 0),
    "saturates": ("fp16", lambda s, x: s.a(x).clamp(-1, 1).exp()),
    "positions": (
        *("bf16", lambda s, x: s.a(x) * torch.sin(torch.arange(8.0) * 1000)),
    ),
    "demand": ("bf16", lambda s, x: torch.sin(s.a(x) * 100)),
    "argmax": ("bf16", lambda s, x: s.a(x).argmax(-1).float()),
    "bounded": (
        "bf16",
        lambda s, x: torch.cos(torch.tanh(s.a(x)) + s.a(x).softmax(-1)),
    ),
    "codes of few": ("bf16", lambda s, x: (torch.sigmoid(s.a(x)) * 4).round()),
    "off": ("off", fourier),
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_program_without_a_defect_is_not_warned_of(
    name: str, *, at_once: bool
) -> None:
    policy, program = HARMLESS[name]
    model = Program(program, a=layer(), b=layer(), w=torch.eye(8)).eval()

    def run() -> None:
        options: Any = {"args": (X,)} if at_once else {}
        amprewrite.convert(model, policy, **options)(X)

    assert [str(w.message) for w in heard(run)] == []


def test_statistics_behind_an_overflow_are_told_of_at_the_first_call() -> None:
    model = nn.Sequential(layer(3e3), layer(1e3), nn.BatchNorm1d(8)).train()
    converted = amprewrite.convert(model, "fp16")
    random = torch.get_rng_state()
    with pytest.warns(OverflowWarning, match=r"^linear_1 \(1, "):
        converted(X)
    assert torch.equal(torch.get_rng_state(), random)
    assert int(converted[2].num_batches_tracked) == 1  # type: ignore[index]
    assert heard(lambda: converted(X)) == []


def test_nothing_is_run_in_a_group_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_check, "_in_group", lambda: True)
    model = Program(unit_length, a=layer(3.0)).eval()
    assert heard(lambda: amprewrite.convert(model, "fp16", args=(X,))) == []
    assert heard(lambda: amprewrite.convert(model, "fp16")(X)) == []


def test_a_filter_turns_a_warning_off() -> None:
    model = Program(unit_length, a=layer(3.0)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="float16 on a CPU")
        warnings.filterwarnings("ignore", category=OverflowWarning)
        amprewrite.convert(model, "fp16", args=(X,))


def test_memory_that_is_not_initialised_is_no_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has any bits, which may be those of an infinity in one dtype alone."""

    def program(s: Any, x: Any) -> Any:
        return s.a(x) + torch.empty(4, 8).mul_(0).add_(1)

    call, infinite = Executor.call, list[Any]()

    def filled(self: Any, node: Any, operands: Any) -> Any:
        value = call(self, node, operands)
        if node.target is torch.ops.aten.empty.memory_format:
            infinite.append(value.fill_((1.0, torch.inf)[len(infinite) % 2]))
        return value

    monkeypatch.setattr(Executor, "call", filled)
    assert not warned(Program(program, a=layer()).eval())
    assert infinite
