"""The programs of a converted model: one for each call signature and mode."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import NotCapturedError, PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.programs import program_table, shared_state
from amprewrite.frameworks.torch_fx.programs.program_table import Programs
from amprewrite.frameworks.torch_fx.programs.shared_state import SharedState
from tests.torch_programs import Program, relative_error

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Config:
    """Settings that the forward reads."""

    def __init__(self) -> None:
        self.scale = 1.0


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.inner = nn.Linear(4, 4)
        self.twice = False

    def forward(self, x: Tensor, factor: int = 1) -> Tensor:
        x = self.inner(x) * factor * self.config.scale
        return x * 2 if self.twice else x


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def converted(model: Any) -> Any:
    return amprewrite.convert(model, args=(X, 1))


@pytest.fixture(scope="module")
def several(converted: Any) -> Any:
    """A converted model with programs for three factors and of a flag."""
    made = copy.deepcopy(converted)
    for factor in (2, 3):
        made(X, factor)
    made.twice = True
    made(X, 1)
    made.twice = False
    return made


def table(made: Any) -> Programs:
    return vars(made)[STATE]


def test_each_signature_has_its_program_and_finds_it_again(several: Any) -> None:
    made = copy.deepcopy(several)
    programs = [table(made).program_for(made, (X, n), {}) for n in (2, 3)]
    assert programs[0] is not programs[1]
    assert table(made).program_for(made, (X, 2), {}) is programs[0]
    assert table(made).program_for(made, (X,), {"factor": 3}) is programs[1]
    assert len(made.plans) == 4


def test_a_known_call_is_looked_up_and_not_compared(
    several: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = copy.deepcopy(several)
    made(X, 2)
    program = table(made).latest()
    monkeypatch.setattr(type(program), "takes", None)
    monkeypatch.setattr(program_table, "structure_key", None)
    assert table(made).program_for(made, (X + 1, 2), {}) is program


def test_remembered_calls_are_bounded(
    several: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_table, "KEYS", 2)
    made = copy.deepcopy(several)
    found = [table(made).program_for(made, (X, n), {}) for n in (1, 2, 3, 2, 1, 3)]
    assert found[:3] == [found[4], found[3], found[5]]
    assert len(table(made)._table.known) <= 2
    assert len(made.plans) == 4


def test_the_plan_is_that_of_the_last_call_in_this_structure(several: Any) -> None:
    made = copy.deepcopy(several)
    plans = made.plans
    for factor, number in ((2, 1), (1, 0), (3, 2)):
        made(X, factor)
        assert made.plan is plans[number]
        assert made.rewritten is table(made).latest().rewritten
    made.twice = True
    assert made.plan is plans[3], "of another structure"
    made.twice = False
    assert made.plan is plans[2]


def test_plans_are_in_the_order_of_their_captures(several: Any) -> None:
    made = copy.deepcopy(several)
    before = made.plans
    made.twice = True
    made(X, 2)
    made.twice = False
    made(X, 4)
    made(X, 2)
    assert made.plans[:4] == before
    assert len(made.plans) == 6
    muls = [sum(d.canonical == "mul" for d in plan.decisions) for plan in made.plans]
    assert muls[4] == muls[5] + 1, "the last but one doubles"


def test_the_program_called_longest_ago_goes_from_all_tables(
    converted: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(shared_state, "MANY", 2)
    made = copy.deepcopy(converted)
    first = made.plan
    made.twice = True
    made(X, 1)
    second = made.plan
    made.twice = False
    made(X, 1)
    made(X, 3)
    assert made.plans == (first, made.plan)
    assert any("programs were captured" in str(w.message) for w in recwarn)
    made.twice = True
    made(X, 1)
    assert all(plan is not second for plan in made.plans)
    assert all(plan is not first for plan in made.plans)
    assert len(made.plans) == 2


def test_a_structure_without_programs_has_no_plan_yet(model: Any) -> None:
    later: Any = amprewrite.convert(model)
    with pytest.raises(NotCapturedError, match="has no plan yet: it is captured at"):
        _ = later.plan
    assert "captured at the first call: 0 graphs" in table(later).line()
    made: Any = amprewrite.convert(model, args=(X, 1), training=True)
    assert made.plan
    assert "policy bf16" in table(made).line()
    made.train()
    with pytest.raises(NotCapturedError, match="no plan for train mode yet"):
        _ = made.plan
    assert len(made.plans) == 1, "those of all modes"


def test_changed_settings_are_noticed_at_the_next_call(
    model: Any, several: Any
) -> None:
    made, twin = copy.deepcopy(several), copy.deepcopy(model)
    made(X, 1)
    made.config.scale = twin.config.scale = 3.0
    assert relative_error(made(X, 1), twin(X, 1)) < 0.02
    assert len(made.plans) == 5
    made.config = Config()
    assert relative_error(made(X, 1), model(X, 1)) < 0.02
    assert len(made.plans) == 5


def test_a_tensor_that_is_set_is_read_by_all_programs(several: Any) -> None:
    made = copy.deepcopy(several)
    made(X, 1)
    made(X, 2)
    made.inner.weight = nn.Parameter(torch.eye(4))
    made.inner.bias = nn.Parameter(torch.zeros(4))
    assert relative_error(made(X, 1), X) < 0.02
    assert relative_error(made(X, 2), 2 * X) < 0.02
    assert len(made.plans) == 4
    assert made.inner.weight.dtype == torch.bfloat16


def test_a_part_has_programs_of_its_own(several: Any, model: Any) -> None:
    made = copy.deepcopy(several)
    assert table(made.inner).plans == ()
    assert relative_error(made.inner(X), model.inner(X)) < 0.02
    assert table(made.inner).latest().path == "inner"
    assert len(table(made.inner).plans) == 1
    assert len(made.plans) == 4
    assert table(made).shared.programs[-1] is table(made.inner).latest()


def test_a_copy_has_copies_of_the_programs(several: Any) -> None:
    made = copy.deepcopy(several)
    ours, theirs = table(made), table(several)
    assert made.plans == several.plans
    assert ours.latest() is not theirs.latest()
    assert ours.plan == theirs.plan
    assert {id(p) for p in ours.shared.programs}.isdisjoint(
        map(id, theirs.shared.programs)
    )
    made(X, 2)
    assert len(made.plans) == len(several.plans), "found, and not captured again"


def test_a_pickle_has_all_programs_of_a_structure(converted: Any) -> None:
    made = copy.deepcopy(converted)
    made(X, 2)
    loaded = pickle.loads(pickle.dumps(made))
    for factor in (1, 2):
        assert torch.equal(loaded(X, factor), made(X, factor))
    assert loaded.plans == made.plans
    with pytest.raises(PlanMismatchError):
        loaded(X, 4)


@pytest.mark.parametrize("called", [False, True])
def test_a_pickle_keeps_programs_of_structures_apart(
    converted: Any, *, called: bool
) -> None:
    """The loaded model runs the program of another flag."""
    made = copy.deepcopy(converted)
    made.twice = True
    if called:
        made(X, 1)
    made.twice = not called
    loaded = pickle.loads(pickle.dumps(made))
    assert loaded.twice is not called
    try:
        found = loaded(X, 1)
    except UnsupportedError:  # it cannot capture another
        return
    assert torch.equal(found, made(X, 1))


def test_a_model_without_programs_is_not_pickled(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="captured at its first call cannot be"):
        pickle.dumps(amprewrite.convert(model))


def test_loaded_programs_set_the_mode_if_they_have_one(several: Any) -> None:
    kept = table(several)
    shared = SharedState(None, trains=True)
    programs = Programs(shared, several)
    programs.store(kept.to_pickle()[2])
    assert shared.mode is False
    assert programs.to_pickle()[2] == kept.to_pickle()[2], "pickled before any call"


def test_programs_are_shared_by_a_deep_copy_of_a_part(several: Any) -> None:
    assert copy.deepcopy(table(several.inner)) is table(several.inner)


def test_changed_programs_are_looked_up_before_a_compiled_call(several: Any) -> None:
    made = copy.deepcopy(several)
    made(X, 1)
    watch = table(made).shared.watch
    made.twice = True
    assert watch.changed
    table(made).look_up(made)
    assert not watch.changed
    with made.inner.register_forward_hook(lambda *_: None):
        assert watch.changed
        table(made).look_up(made)
        assert not watch.changed


@pytest.mark.parametrize("double", [False, True])
def test_a_call_that_is_traced_runs_the_program_of_its_signature(
    several: Any, *, double: bool
) -> None:
    made = copy.deepcopy(several)
    made.twice = double
    expected = made(X, 1)
    program = torch.export.export(made, (X, 1), strict=False).module()
    assert torch.equal(program(X, 1), expected)


def test_a_structure_without_programs_is_captured_in_an_export(model: Any) -> None:
    made: Any = amprewrite.convert(model, args=(X, 1), training=True)
    made.train()
    made(X, 1)
    made.twice = True
    program = torch.export.export(made, (X, 2), strict=False).module()
    assert torch.equal(program(X, 2), made(X, 2))


def test_a_compiled_function_has_the_program_of_its_arguments() -> None:
    """The only program of the model was traced, whatever it was captured for."""

    class Mean(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as nn.Linear
            return super().forward(input).sum(0) / input.shape[0]

    made = amprewrite.convert(Mean(4, 4).eval(), args=(X,))
    torch.compiler.reset()
    run: Any = torch.compile(lambda x: made(x) * 1, backend="eager")
    for rows in (2, 8, 3, 5):
        x = torch.ones(rows, X.shape[1])
        assert relative_error(run(x), made(x[:2])) < 1e-6


@pytest.mark.parametrize("training", [False, True])
def test_a_model_that_was_moved_is_captured_for_the_other_device(
    *, training: bool
) -> None:
    """A program makes its positions on the device of its capture."""

    class Positions(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as nn.Linear
            places = torch.arange(4.0, device=input.device)
            return super().forward(input + places)

    model = Positions(4, 4).train(training)
    made: Any = amprewrite.convert(copy.deepcopy(model), args=(X,))
    made.to("meta")
    assert made(X.to("meta")).device.type == "meta"
    assert len(made.plans) == 2
    assert made.plans[0].casts
    assert len(made.plans[1].casts) == len(made.plans[0].casts)


@pytest.mark.parametrize("training", [False, True])
def test_weights_that_were_tied_at_the_capture_are_read_apart_later(
    *, training: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).train(training)
    model[2].weight = model[0].weight
    made: Any = amprewrite.convert(copy.deepcopy(model), args=(X,))
    for one in (model, made):
        one[2].weight = nn.Parameter(torch.eye(4) * 2)
    assert relative_error(made(X), model(X)) < 1e-2
    made(X).sum().backward()
    assert made[0].weight.grad is not None
    made[2].weight = made[0].weight
    assert len(made.plans) == 2
    assert made(X).shape == X.shape
    assert len(made.plans) == 2, "tied again"


@pytest.mark.filterwarnings("ignore:this call reads:amprewrite.errors.AmpWarning")
@pytest.mark.parametrize("first", [False, True])
def test_a_weight_that_two_programs_read_in_two_dtypes_has_gradients(
    *, first: bool
) -> None:
    def forward(m: Any, x: Tensor, full: Any) -> Tensor:
        return x @ (m.weight.softmax(-1) if full else m.weight)

    model = Program(forward, weight=nn.Parameter(torch.eye(4) + X[0])).eval()
    made: Any = amprewrite.convert(copy.deepcopy(model), args=(X, first))
    for full in (first, not first):
        found = []
        for one in (model, made):
            one.zero_grad()
            one(X, full).square().sum().backward()
            found.append(one.weight.grad)
        assert relative_error(found[1], found[0]) < 2e-2


def _autocast(made: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return made(X)


def _by_name(made: Any) -> Any:
    return made(x=X)


def _low_weights(made: Any, *names: str) -> Any:
    held = dict(made.named_parameters())
    low = {name: held[name].detach().bfloat16() for name in names or held}
    return torch.func.functional_call(made, low, (X,))


def _second_low(made: Any) -> Any:
    return _low_weights(made, "inner.bias")


def _batched(made: Any) -> Any:
    return torch.func.vmap(made)(X[None])[0]


@pytest.mark.parametrize(
    "call",
    [_autocast, _by_name, _low_weights, _second_low, _batched],
    ids=lambda call: call.__name__.strip("_"),
)
def test_a_later_call_elsewhere_is_as_the_first(model: Any, call: Any) -> None:
    """Calls after the first take a shorter way, unless something is around them."""
    made = amprewrite.convert(model, "off", args=(X,))
    first = made(X)
    found = call(made)
    assert found.dtype == first.dtype
    assert relative_error(found, first) <= (2**-8 if "low" in call.__name__ else 0)
    assert torch.equal(made(X), first)


class Difference(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y


def test_keywords_in_another_order_are_the_same_arguments() -> None:
    made = amprewrite.convert(Difference(), "off", kwargs={"x": X, "y": 2 * X})
    for _ in range(3):
        assert torch.equal(made(y=2 * X, x=X), -X)
        assert torch.equal(made(x=X, y=2 * X), -X)


class Broken(Network):
    """A model of two graphs."""

    def forward(self, x: Tensor, factor: int = 1) -> Tensor:
        torch._dynamo.graph_break()
        return super().forward(x, factor)


@pytest.mark.parametrize("kind", [Network, Broken])
@pytest.mark.parametrize(
    "given",
    [{"args": (X, 1)}, {}, {"args": (X, 1), "training": True}, {"training": True}],
)
def test_a_later_call_walks_no_modules(
    kind: Any, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a call does not grow with the number of parts."""
    made = amprewrite.convert(kind().eval(), **given)
    first = [made(X, 1) for _ in range(3)][-1]

    def walk(*_: Any, **__: Any) -> Any:
        raise AssertionError("a call walks the modules")

    for name in ("named_modules", "named_parameters", "named_buffers", "children"):
        monkeypatch.setattr(nn.Module, name, walk)
    monkeypatch.setattr(module_parts, "modules_by_path", walk)
    assert torch.equal(made(X, 1), first)
