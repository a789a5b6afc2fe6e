"""The plans of what torch.compile captured, and its limit of captures."""

import inspect
import warnings
from importlib.metadata import entry_points
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.backend import amprewrite as backend
from amprewrite.errors import AmpWarning, NotCapturedError, UnsupportedError
from tests.torch_programs import Program, in_full

INSTALLED = "amprewrite" in entry_points(group="torch_dynamo_backends").names


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def moded(m: Any, x: Any, mode: str = "") -> Any:
    y = m.a(x)
    return y + 1 if mode.startswith("plus") else y


def a_model() -> Any:
    return Program(moded, a=nn.Linear(8, 8)).eval()


def compiled(model: Any, **given: Any) -> Any:
    return torch.compile(model, backend=backend, **given)


def linears(plan: Any) -> list[str]:
    return [d.op for d in plan.decisions if d.canonical == "linear"]


X = torch.ones(4, 8)


def test_a_compiled_module_has_the_plan_of_what_ran() -> None:
    module = compiled(a_model())
    in_full(module, X)
    plan = amprewrite.plan_of(module)
    assert linears(plan) == ["linear"]
    assert plan.lowered


@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_function_has_its_plan(whole: bool) -> None:  # noqa: FBT001
    model = a_model()
    function = compiled(lambda x: model(x) * 2, fullgraph=whole)
    in_full(function, X)
    assert linears(amprewrite.plan_of(function)) == ["linear"]


def test_a_module_compiled_in_place_has_its_plan() -> None:
    model = a_model()
    model.compile(backend=backend)
    in_full(model, X)
    assert linears(amprewrite.plan_of(model)) == ["linear"]


def test_several_graphs_are_one_plan() -> None:
    module = compiled(a_model())
    in_full(module, X)
    in_full(module, X, "plus")
    assert linears(amprewrite.plan_of(module)) == ["graph0.linear", "graph1.linear"]


def test_models_have_plans_of_their_own() -> None:
    low, full = compiled(a_model()), compiled(a_model(), options={"policy": "off"})
    in_full(low, X)
    in_full(full, X)
    assert amprewrite.plan_of(low).policy == "bf16"
    assert amprewrite.plan_of(full).policy == "off"


def test_equal_calls_of_torch_compile_capture_for_themselves() -> None:
    model = a_model()
    for _ in range(2):
        module = compiled(model)
        with pytest.raises(NotCapturedError):
            amprewrite.plan_of(module)
        in_full(module, X)
        assert linears(amprewrite.plan_of(module)) == ["linear"]


def test_a_module_has_the_plans_of_its_parts() -> None:
    converted = amprewrite.convert(a_model(), args=(X,))
    whole = nn.Sequential(compiled(a_model()), nn.ReLU(), converted)
    in_full(whole, X)
    assert linears(amprewrite.plan_of(whole)) == ["graph0.linear", "graph1.linear"]


def test_a_converted_module_has_its_plan_also_when_compiled() -> None:
    converted = amprewrite.convert(a_model(), args=(X,))
    assert amprewrite.plan_of(converted) == converted.plan
    around: Any = torch.compile(converted, backend="eager")
    assert amprewrite.plan_of(around) == converted.plan


def test_before_the_first_call_there_is_no_plan() -> None:
    with pytest.raises(NotCapturedError, match="call it once; want torch"):
        amprewrite.plan_of(compiled(a_model()))
    with pytest.raises(NotCapturedError, match="first call"):
        amprewrite.plan_of(amprewrite.convert(a_model()))


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(nn.ReLU())])
def test_what_is_not_converted_has_none(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="want a result of amprewrite"):
        amprewrite.plan_of(model)


@pytest.mark.skipif(not INSTALLED, reason="the package is not installed")
def test_twenty_values_of_a_string_are_captured() -> None:
    model: Any = a_model()
    module: Any = torch.compile(model, backend="amprewrite")
    full = in_full(model, X)
    low = in_full(module, X)
    for value in range(20):
        assert torch.equal(in_full(module, X, f"mode {value}"), low)
    assert not torch.equal(low, full)


@pytest.mark.skipif(
    "recompile_limit" not in inspect.signature(torch.compile).parameters,
    reason="this torch has no limit of one compilation",
)
def test_the_limit_of_captures_is_announced() -> None:
    model = a_model()
    module = compiled(model, recompile_limit=2)
    in_full(module, X, "first")
    with pytest.warns(AmpWarning, match="in full precision; give numbers") as caught:
        in_full(module, X, "second")
    (told,) = (w for w in caught if w.category is AmpWarning)  # not torch's own
    assert "forward" in str(told.message)
    assert torch.equal(in_full(module, X, "third"), in_full(model, X))


class Part(nn.Module):
    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        return x * 2


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = Part(), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = self.part(x)
        return self.head(x)


class Straight(Loop):
    def forward(this: Any, x: Any) -> Any:  # noqa: N805  # any name will do
        return this.head(this.part(x))


def test_what_dynamo_gives_up_is_announced_once() -> None:
    model = Loop().eval()
    module = compiled(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AmpWarning)
        in_full(module, X)
        in_full(module, X[:2])
    found = [str(w.message) for w in caught if "dynamo runs" in str(w.message)]
    (line,) = found
    assert line.startswith("dynamo runs Loop.forward (")
    assert torch.equal(in_full(module, X), in_full(model, X))  # as it says


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_a_break_that_dynamo_goes_on_after_is_not() -> None:
    model: Any = Straight().eval()
    module = compiled(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="dynamo runs")
        low = in_full(module, X)
    assert not torch.equal(low, in_full(model, X))
