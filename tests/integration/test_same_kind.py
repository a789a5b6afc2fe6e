"""A converted torch model is still the user's model."""

import copy
import inspect
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    PlanMismatchError,
    UnsupportedError,
)
from tests.torch_programs import relative_error

ROUNDING = 2.0**-8


class Config:
    """Settings that a forward reads."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.name = "small"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(x).relu())


class Network(nn.Module):
    """A model with attributes, a property, methods, flags and settings."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 4)
        self.twice = False

    @property
    def width(self) -> int:
        return self.head.in_features

    def encode(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x: Tensor, mask: Tensor | None = None, *, bias: int = 0) -> Any:
        """Return logits."""
        hidden = self.encode(x) * self.config.scale
        if mask is not None:
            hidden = hidden * mask[..., None]
        logits = self.head(hidden) + bias
        return {"logits": logits * 2 if self.twice else logits, "hidden": hidden}


RECORDED: list[Tensor] = []


def keep(*given: Any) -> None:
    RECORDED.append(given[2])


class Recorder(nn.Module):
    """A model that registers hooks on its layers when their outputs are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.registered, self.scale = False, 1.0

    def forward(self, x: Tensor, *, record: bool = False) -> list[Tensor]:
        if record and not self.registered:
            self.registered = True
            self.first.register_forward_hook(keep)
            self.second.register_forward_hook(keep)
        RECORDED.clear()
        x = self.second(self.first(x)) * self.scale
        return list(RECORDED) if record else [x]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Network().eval()


X = torch.linspace(-1, 1, 24).reshape(3, 8)


def converted(model: Any, **options: Any) -> Any:
    return amprewrite.convert(model, args=(X,), **options)


def close(found: Any, expected: Any) -> bool:
    return relative_error(found, expected) < 2 * ROUNDING


def test_it_is_an_instance_of_the_models_class(model: Any) -> None:
    made = converted(model)
    assert isinstance(made, Network)
    assert type(made) is not Network
    assert type(made).__name__ == made._get_name() == "Network"
    assert type(made).__qualname__ == "ConvertedNetwork"
    assert type(made) is type(converted(model)), "one class for each class of models"
    assert made.config.name == "small"
    assert made.width == 8
    assert inspect.signature(made.forward) == inspect.signature(model.forward)
    assert made.forward.__doc__ == model.forward.__doc__
    assert list(made.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("part", [False, True])
def test_a_new_model_of_its_class_is_plain(model: Any, *, part: bool) -> None:
    made: Any = converted(model)
    kind = type(made.head if part else made)
    given: Any = (8, 4) if part else ()
    plain: Any = nn.Linear if part else Network
    new = kind(*given)
    assert type(new) is plain
    assert repr(new) == repr(plain(*given))
    assert inspect.signature(kind) == inspect.signature(plain)
    x = torch.randn(4, 8)
    found, expected = new(x), copy.deepcopy(new)(x)
    assert relative_error(found, expected) == 0


def test_its_parts_are_instances_of_their_classes(model: Any) -> None:
    made = converted(model)
    assert len(made.layers) == 2
    assert isinstance(made.layers[0].inner, nn.Linear)
    pairs = zip(made.named_modules(), model.named_modules(), strict=True)
    for (path, ours), (name, theirs) in pairs:
        assert path == name
        assert isinstance(ours, type(theirs))
        assert ours is not theirs
    groups = {
        id(p)
        for m in made.modules()
        if isinstance(m, nn.Linear)
        for p in m.parameters()
    }
    assert groups == {id(p) for p in made.parameters()}


def test_training_shares_the_parameters_of_the_model() -> None:
    model = Network().train()
    made = converted(model)
    theirs = dict(model.named_parameters())
    assert all(p is theirs[name] for name, p in made.named_parameters())
    made(X)["logits"].sum().backward()
    assert model.head.weight.grad is not None


def test_its_text_is_the_models_and_a_line(model: Any) -> None:
    text = repr(converted(model)).split("\n")
    assert text[0] == "ConvertedNetwork("
    assert "policy bf16" in text[1]
    assert [text[0].removeprefix("Converted"), *text[2:]] == repr(model).split("\n")


@pytest.mark.parametrize("training", [False, True])
def test_it_is_copied_and_pickled(model: Any, *, training: bool) -> None:
    made = converted(model, training=training)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):  # ours
        assert type(twin) is type(made)
        assert torch.equal(twin(X)["logits"], made(X)["logits"])
        with torch.no_grad():
            twin.head.weight.zero_()
        assert not torch.equal(twin(X)["logits"], made(X)["logits"])
        assert type(amprewrite.original(twin)) is Network


def test_other_calls_are_captured_and_an_extent_that_changes_varies(model: Any) -> None:
    made = converted(model)
    for rows in range(4, 30):
        x = torch.randn(rows, 8)
        assert close(made(x)["logits"], model(x)["logits"])
    assert len(made.plans) == 2
    for rows in range(4, 30):
        x, mask = torch.randn(rows, 8), torch.rand(rows)
        assert close(made(x, mask)["logits"], model(x, mask)["logits"])
        assert close(made(x, mask=mask)["logits"], model(x, mask)["logits"])
    assert len(made.plans) == 3, "what varies is known by then"
    assert close(made(X, bias=2)["logits"], model(X, bias=2)["logits"])
    assert len(made.plans) == 4
    assert made.plan is made.plans[-1], "that of the last call"


class Branches(nn.Module):
    """A model with branches on an extent."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if x.shape[0] > 5:
            return y * 2
        return y * 3 if x.shape[0] % 2 else y


def test_a_branch_on_an_extent_that_varies_is_taken_as_in_the_model() -> None:
    model = Branches().eval()
    made: Any = amprewrite.convert(model, args=(torch.randn(7, 8),))
    for rows in (8, 9, 3, 4, 5, 2, 30, 1):
        x = torch.randn(rows, 8)
        assert close(made(x), model(x))
    shapes = {"x": {0: torch.export.Dim.AUTO}}
    exported = torch.export.export(model, (torch.randn(7, 8),), dynamic_shapes=shapes)
    for given in (exported, exported.module()):
        alone: Any = amprewrite.convert(given, args=(torch.randn(7, 8),))
        assert close(alone(torch.randn(9, 8) * 0 + 1), model(torch.ones(9, 8)))
        with pytest.raises(PlanMismatchError, match="takes another branch"):
            alone(torch.randn(3, 8))


def test_low_weights_are_stored_once(model: Any) -> None:
    made = converted(model)
    before = {id(t) for t in made.state_dict(keep_vars=True).values()}
    made(torch.randn(5, 8))
    made(torch.randn(5, 8), torch.rand(5))
    made.layers[0](X)
    assert {id(t) for t in made.state_dict(keep_vars=True).values()} == before
    full = sum(t.nbytes for t in model.state_dict().values())
    low = sum(t.nbytes for t in made.state_dict().values())
    extra = sum(t.nbytes for _, t in made.rewritten.named_buffers())
    assert low + extra <= 0.55 * full


def test_too_many_programs_warn_once_and_the_oldest_goes(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amprewrite.frameworks.torch_fx.programs.shared_state.MANY", 3)
    made = converted(model)
    with pytest.warns(AmpWarning, match="programs were captured") as told:
        found = [made(X, bias=bias)["logits"] for bias in range(1, 6)]
    for bias, logits in enumerate(found, 1):
        assert close(logits, model(X, bias=bias)["logits"])
    assert len([w for w in told if "programs were captured" in str(w.message)]) == 1
    assert len(made.plans) == 3


def test_a_part_called_by_itself_is_converted(model: Any) -> None:
    rule = {"path": "layers.1.inner", "class": "deny"}
    made = converted(model, overrides=[rule])
    assert close(made.layers[0](X), model.layers[0](X))
    assert made.layers[0](X).dtype == torch.float32
    assert not torch.equal(made.layers[0](X), model.layers[0](X))
    plan = vars(made.layers[1])["_amprewrite"]
    made.layers[1](X)
    paths = {
        d.path: d.precision for d in plan.plan.decisions if d.canonical == "linear"
    }
    assert paths == {"layers.1.inner": "float32", "layers.1.outer": "bfloat16"}
    assert close(made.encode(X), model.encode(X)), "a method that calls the parts"
    assert len(made.plans) == 1


def test_a_flag_that_the_forward_reads_is_followed(model: Any) -> None:
    made, twin = converted(model), copy.deepcopy(model)
    for kept in (made, twin):
        kept.twice = True
    assert close(made(X)["logits"], twin(X)["logits"])
    for kept in (made, twin):
        kept.config.scale = 3.0
    assert close(made(X)["logits"], twin(X)["logits"])
    assert len(made.plans) == 3
    made.twice, made.config.scale = False, 1.0
    assert close(made(X)["logits"], model(X)["logits"])
    assert len(made.plans) == 3, "the first program is found again"


def test_an_attribute_that_no_forward_reads_captures_nothing(model: Any) -> None:
    made = converted(model)
    made.epoch = 3
    made.config.name = "large"
    made(X)
    assert len(made.plans) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "head", nn.Sequential(nn.Linear(8, 4), nn.ReLU())),
        lambda m: m.layers.append(Block()),
        lambda m: m.layers[0].__setattr__("outer", nn.Identity()) or None,
        lambda m: prune.l1_unstructured(m.head, "weight", 0.5) and None,
        lambda m: (
            parametrize.register_parametrization(m.head, "weight", nn.Softmax(-1))
            and None
        ),
    ],
    ids=["replaced", "appended", "removed", "pruned", "parametrized"],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_changed_structure_is_captured_again(
    model: Any, change: Any, *, training: bool, request: pytest.FixtureRequest
) -> None:
    if "removed" in request.node.name:
        change = lambda m: m.layers.__delitem__(1)  # noqa: E731  # a case
    made = converted(model, training=training)
    made(X)
    torch.manual_seed(1)
    change(made)
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    change(twin)
    assert close(made(X)["logits"], twin(X)["logits"])
    assert len(made.plans) == 2


def test_a_forward_hook_on_a_part_runs_at_each_call(model: Any) -> None:
    made = converted(model)
    found: list[Any] = []
    hook = made.layers[0].register_forward_hook(lambda *given: found.append(given[2]))
    for x in (X, -X, X + 1):
        given = made(x)["hidden"]
        assert close(given, model(x)["hidden"])
        assert close(found.pop(), model.layers[0](x))
    assert not found
    assert "has a hook" in made.plan.captured
    hook.remove()
    made(X)
    assert not found
    assert "torch.export" in made.plan.captured, "the program without it is kept"
    with made.register_forward_hook(lambda *given: found.append(given)):
        made(X)
    assert len(found) == 1, "hooks on the converted model itself run"


def test_a_forward_hook_that_changes_what_a_part_gives_is_followed(model: Any) -> None:
    made, twin = converted(model), copy.deepcopy(model)
    for one in (made, twin):
        one.layers[0].register_forward_hook(lambda *given: given[2] * 3)
    assert close(made(X)["logits"], twin(X)["logits"])


def test_a_hook_of_the_user_that_a_model_comes_with_runs_at_each_call(
    model: Any,
) -> None:
    twin, found = copy.deepcopy(model), list[Any]()
    twin.layers[0].register_forward_hook(lambda *given: found.append(given[2]))
    made = converted(twin)
    found.clear()
    for x in (X, -X):
        made(x)
        assert close(found.pop(), model.layers[0](x))
    assert not found
    with pytest.raises(
        UnsupportedError, match=r"export runs the hook .* of layers\.0 once"
    ):
        converted(twin, tolerance=1e-2)


def test_hooks_that_a_forward_registers_on_parts_stay_with_the_model() -> None:
    made: Any = amprewrite.convert(Recorder().eval(), args=(X,))
    for _ in range(2):
        assert len(made(X, record=True)) == 2
    made.scale = 2.0
    assert len(made(X, record=True)) == 2, "the next program has them too"
    assert len(made(X, record=True)) == 2


def test_a_call_that_the_model_refuses_leaves_no_program(model: Any) -> None:
    made = converted(model)
    with pytest.raises(Exception, match="dtype"):
        made(X.double())
    made(torch.randn(5, 8))
    assert len(made.plans) == 2
    assert all("torch.export" in plan.captured for plan in made.plans)


class Either(nn.Module):
    """Two layers, of which a call uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, *, first: bool = True) -> Tensor:
        return self.a(x) if first else self.b(x)


def test_programs_that_read_other_weights_follow_what_is_assigned() -> None:
    model, other = Either().eval(), Either().eval()
    made: Any = converted(model)
    assert close(made(X, first=False), model(X, first=False))
    assert {t.dtype for t in made.state_dict().values()} == {torch.bfloat16}
    made.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    for first in (True, False):
        assert close(made(X, first=first), other(X, first=first))
    plain = amprewrite.original(made)
    assert {t.dtype for t in plain.state_dict().values()} == {torch.float32}
    assert close(plain(X), other(X))


def test_a_model_that_may_be_trained_keeps_its_weights_full() -> None:
    """Without args the mode is open: no program stores weights low."""
    model = Either().eval()
    made: Any = amprewrite.convert(model)
    for given in ({}, {"first": False}):
        assert close(made(X, **given), model(X, **given))
    made.a.in_features = 8  # another structure, which is captured by export
    made.train()
    made(X, first=False).sum().backward()
    assert made.b.weight.grad.dtype == made.b.weight.dtype == torch.float32
    made.eval()
    made(torch.randn(5, 8))
    assert {t.dtype for t in made.state_dict().values()} == {torch.float32}


def test_hooks_of_the_model_itself_run_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    model.register_forward_hook(lambda *given: given[2].mul(2))
    made: Any = converted(model)
    for x in (X, torch.randn(5, 8), torch.randn(6, 8)):
        assert close(made(x), model(x))


def test_a_model_with_names_of_ours_keeps_them() -> None:
    class Planned(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.plan = "mine"

        def casts(self) -> str:
            return "mine too"

    made: Any = converted(Planned().eval())
    assert (made.plan, made.casts()) == ("mine", "mine too")
    assert amprewrite.plan_of(made).casts
    made.plan = "other"
    assert made.plan == "other"


def test_weights_read_otherwise_by_another_program_are_kept() -> None:
    """The first program stores the table low; the second reads it in full."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 8)

        def forward(self, x: Tensor, *, square: bool = False) -> Tensor:
            table = self.table.weight
            return table.exp() if square else x @ table

    model = Table().eval()
    made: Any = converted(model)
    assert made.table.weight.dtype == torch.bfloat16
    with pytest.warns(AmpWarning, match=r"reads table\.weight in float32.*rounded"):
        found = made(X, square=True)
    assert torch.equal(found, model.table.weight.bfloat16().float().exp())
    assert close(made(X), model(X))
    made.load_state_dict({"table.weight": model.table.weight.detach() * 2})
    torch.testing.assert_close(made(X, square=True), found.square())
    assert close(made(X), 2 * model(X))


@pytest.mark.parametrize("strict", [True, False])
def test_the_rewritten_program_is_exported(model: Any, *, strict: bool) -> None:
    made = converted(model)
    made(torch.randn(5, 8))
    made(torch.randn(6, 8))
    program = torch.export.export(made, (X,), strict=strict).module()
    assert torch.equal(program(X)["logits"], made(X)["logits"])
    assert torch.bfloat16 in {
        node.meta["val"].dtype
        for node in program.graph.nodes
        if isinstance(node.meta.get("val"), Tensor)
    }


def test_it_may_be_compiled_as_a_whole(model: Any) -> None:
    made = converted(model)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X)["logits"], made(X)["logits"])


def test_what_dynamo_captures_is_behind_the_same_object(model: Any) -> None:
    made: Any = amprewrite.convert(model)
    assert isinstance(made, Network)
    assert close(made(X)["logits"], model(X)["logits"])
    assert made.head.weight.dtype == torch.float32
    assert close(made.layers[0](X), model.layers[0](X))
    made.twice = True
    twin = copy.deepcopy(model)
    twin.twice = True
    assert close(made(X)["logits"], twin(X)["logits"])
