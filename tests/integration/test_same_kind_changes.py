"""Changes of a converted torch model that its next call follows as the model does."""

import copy
import enum
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import amprewrite
from tests.torch_programs import relative_error

ROUNDING = 2.0**-8
X = torch.linspace(-1, 1, 24).reshape(3, 8)


def scaled(module: Any, x: Tensor) -> Tensor:
    return x * 2 if module.through_function else x


class Mixin:
    """Methods of a class that comes after ``nn.Module``, as in Hugging Face's."""

    through_mixin: bool

    def picked(self, x: Tensor) -> Tensor:
        return x * 2 if self.through_mixin else x


class Varied(nn.Module, Mixin):
    """A model with attributes of many kinds that its forward reads."""

    extra: Tensor | None
    gain: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.activation = torch.tanh
        self.listed = [1.0, 2.0]
        self.named = {"gain": 1.0}
        self.nested = [{"gains": [1.0]}]
        self.mask = torch.ones(8)
        self.tensors = [torch.ones(8)]
        self.through_mixin = self.through_function = False
        self.register_buffer("extra", None)
        self.register_parameter("gain", None)
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) * self.weight
        x = x if self.gain is None else x * self.gain
        x = self.activation(self.inner(x)) * self.listed[0] * self.named["gain"]
        x = x * self.nested[0]["gains"][0]
        x = self.picked(scaled(self, x)) * self.mask * self.tensors[0]
        return x if self.extra is None else x * self.extra


@pytest.fixture(scope="module")
def pair() -> Any:
    torch.manual_seed(0)
    model = Varied().eval()
    return model, amprewrite.convert(model, args=(X,))


def follows(pair: Any, change: Any) -> bool:
    """Whether both give the same after a change of both, and the change matters."""
    before = pair[0](X)
    model, made = copy.deepcopy(pair)
    made(X)
    for one in (model, made):
        torch.manual_seed(1)
        change(one)
    expected = model(X)
    assert expected.shape != before.shape or relative_error(expected, before) > 0.1
    return relative_error(made(X), expected) < 4 * ROUNDING


def patched(module: Any, x: Tensor) -> Tensor:
    return x * module.in_features


FIVES = nn.Parameter(torch.full((8,), 5.0))

CHANGES = {
    "function": lambda m: setattr(m, "activation", nn.functional.softplus),
    "list": lambda m: setattr(m, "listed", [5.0]),
    "list written to": lambda m: m.listed.__setitem__(0, 7.0),
    "dict": lambda m: setattr(m, "named", {"gain": 9.0}),
    "list in a dict in a list": lambda m: m.nested[0]["gains"].__setitem__(0, 9.0),
    "plain tensor": lambda m: setattr(m, "mask", torch.zeros(8)),
    "plain tensor written to": lambda m: m.mask.fill_(3.0),
    "tensor in a list written to": lambda m: m.tensors[0].fill_(3.0),
    "flag that a function reads": lambda m: setattr(m, "through_function", True),
    "buffer that was None": lambda m: setattr(m, "extra", torch.full((8,), 5.0)),
    "plain tensor written to through data": lambda m: m.mask.data.fill_(3.0),
    "tensor in a list written to by NumPy": lambda m: m.tensors[0].numpy().fill(3.0),
    "parameter that was None": lambda m: setattr(m, "gain", FIVES),
    "parameter that was registered as None": lambda m: m.register_parameter(
        "gain", FIVES
    ),
    "weight that a norm had not": lambda m: setattr(m.norm, "weight", FIVES),
    "bias that is removed": lambda m: setattr(m.inner, "bias", None),
    "parameter made a buffer": lambda m: (
        delattr(m, "weight"),
        m.register_buffer("weight", FIVES.detach()),
    ),
    "parameter made a plain tensor": lambda m: (
        delattr(m, "weight"),
        setattr(m, "weight", FIVES.detach()),
    ),
    "forward of a part": lambda m: setattr(
        m.inner, "forward", types.MethodType(patched, m.inner)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_attribute_is_followed(pair: Any, name: str) -> None:
    assert follows(pair, CHANGES[name])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("args", [None, (X,)])
def test_a_part_that_is_replaced_by_one_like_it_is_followed(
    args: Any, *, training: bool
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    made: Any = amprewrite.convert(model, args=args, training=training)
    made(X)
    for _ in range(2):
        model[2] = nn.Linear(8, 8).eval()
        made[2] = copy.deepcopy(model[2])
        assert relative_error(made(X), model(X)) < 4 * ROUNDING


def test_a_flag_that_a_method_of_a_mixin_reads_is_followed(pair: Any) -> None:
    assert follows(pair, lambda m: setattr(m, "through_mixin", True))


class Inner:
    """Settings inside of settings."""

    def __init__(self) -> None:
        self.shift = 0.0


class Settings:
    """Settings with a property, a method, a container and settings inside."""

    def __init__(self) -> None:
        self.kind_inside = "sum"
        self.factor_inside = 1.0
        self.listed = [1.0]
        self.inner = Inner()

    @property
    def kind(self) -> str:
        return self.kind_inside

    def factor(self) -> float:
        return self.factor_inside


class Aliased:
    """Settings with a second name for an attribute, as configurations have."""

    names = types.MappingProxyType({"width": "gain"})

    def __init__(self) -> None:
        self.gain = 1.0

    def __getattribute__(self, name: str) -> Any:
        names = object.__getattribute__(self, "names")
        return object.__getattribute__(self, names.get(name, name))


class Configured(nn.Module):
    """A model whose settings decide what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.aliased = Settings(), Aliased()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x) if self.config.kind == "sum" else -self.inner(x)
        x = x * self.config.factor() * self.config.listed[0]
        return x * self.aliased.width + self.config.inner.shift


@pytest.fixture(scope="module")
def configured() -> Any:
    torch.manual_seed(0)
    model = Configured().eval()
    return model, amprewrite.convert(model, args=(X,))


IN_SETTINGS = {
    "by a property": lambda m: setattr(m.config, "kind_inside", "difference"),
    "by a method": lambda m: setattr(m.config, "factor_inside", 3.0),
    "in a list": lambda m: m.config.listed.__setitem__(0, 3.0),
    "inside of others": lambda m: setattr(m.config.inner, "shift", 3.0),
    "by another name": lambda m: setattr(m.aliased, "gain", 3.0),
}


@pytest.mark.parametrize("name", IN_SETTINGS)
def test_settings_that_are_read_otherwise_than_by_their_name_are_followed(
    configured: Any, name: str
) -> None:
    assert follows(configured, IN_SETTINGS[name])


@pytest.fixture(scope="module")
def stacks() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh()).eval()
    return model, amprewrite.convert(model, args=(X,))


def deleted_and_appended(stack: Any) -> None:
    """``del`` replaces the dict of submodules by a new one."""
    del stack[1]
    stack(X)
    stack.append(nn.Softmax(-1))


def deleted_and_set_in_the_dict(stack: Any) -> None:
    del stack[1]
    stack(X)
    stack._modules["0"] = nn.Softmax(-1)


@pytest.mark.parametrize("change", [deleted_and_appended, deleted_and_set_in_the_dict])
def test_changes_after_a_deletion_are_followed(stacks: Any, change: Any) -> None:
    assert follows(stacks, change)


def test_a_number_that_is_not_one_is_captured_once() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor, scale: float = 1.0) -> Tensor:  # noqa: A002  # name in nn.Linear
            return super().forward(input) * scale

    made: Any = amprewrite.convert(Scaled(8, 8).eval(), args=(X,))
    for _ in range(3):
        made(X, float("nan"))
    assert len(made.plans) == 2


def test_a_part_of_another_converted_model_is_refused_but_for_a_copy(
    stacks: Any,
) -> None:
    model, made = copy.deepcopy(stacks)
    _, other = copy.deepcopy(stacks)
    made[1] = other[1]
    with pytest.raises(amprewrite.errors.UnsupportedError, match="give this model a c"):
        made(X)
    made[1] = copy.deepcopy(amprewrite.original(other)[1])
    assert relative_error(made(X), model(X)) < 4 * ROUNDING


def test_a_part_of_a_converted_model_is_refused_in_another(stacks: Any) -> None:
    _, made = stacks
    with pytest.raises(amprewrite.errors.UnsupportedError, match="part 0 was taken"):
        amprewrite.convert(nn.Sequential(made[0], nn.Tanh()).eval(), args=(X,))


def test_a_layer_made_of_a_low_one_is_converted_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    made: Any = amprewrite.convert(model, args=(X,))
    wider = nn.Linear(8, 9, dtype=made[0].weight.dtype)
    with torch.no_grad():
        wider.weight[:8].copy_(made[0].weight)
        wider.bias[:8].copy_(made[0].bias)
    made[0] = wider
    assert relative_error(made(X)[:, :8], model(X)) < 4 * ROUNDING
    assert made(X).dtype == amprewrite.original(made)(X).dtype == torch.float32


def test_a_class_that_wants_arguments_of_its_subclasses_is_derived() -> None:
    class Registered(nn.Linear):
        def __init_subclass__(cls, *, tag: str, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)

    class Kind(Registered, tag="a"):
        pass

    made: Any = amprewrite.convert(Kind(8, 8).eval(), args=(X,))
    assert isinstance(made, Kind)


def test_dynamo_captures_what_export_cannot_after_an_exported_program() -> None:
    class Branches(nn.Linear):
        def forward(self, input: Tensor, *, branch: bool = False) -> Tensor:  # noqa: A002  # name in nn.Linear
            found = super().forward(input)
            return -found if branch and input.sum() > -100 else found

    model = Branches(8, 8).eval()
    made: Any = amprewrite.convert(model, args=(X,))
    assert made.weight.dtype == torch.bfloat16
    assert relative_error(made(X, branch=True), -model(X)) < 4 * ROUNDING
    assert "torch.compile" in made.plan.captured


class Choice(enum.Enum):
    """Members of it are no numbers."""

    ONE = 1
    TWO = 2


def test_an_enumeration_counts_by_its_member() -> None:
    class Chooses(nn.Linear):
        def forward(self, input: Tensor, choice: Choice = Choice.ONE) -> Tensor:  # noqa: A002  # name in nn.Linear
            found = super().forward(input)
            return found if choice is Choice.ONE else -found

    model = Chooses(8, 8).eval()
    made: Any = amprewrite.convert(model, args=(X, Choice.ONE))
    assert relative_error(made(X, Choice.TWO), -model(X)) < 4 * ROUNDING


def test_a_tensor_that_a_forward_counts_in_is_written_once_for_each_call() -> None:
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.calls = torch.zeros(1)

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # name in nn.Linear
            self.calls.add_(1)
            return super().forward(input) * self.calls

    model = Counts().eval()
    made: Any = amprewrite.convert(model)
    for number in range(1, 4):
        assert relative_error(made(X), model(X)) < 4 * ROUNDING
        assert made.calls.item() == number
    assert len(made.plans) == 1


class Wrapper(nn.Module):
    """Hands on what it does not have, as adapters do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["inner"], name)


def test_a_wrapper_that_would_be_copied_without_itself_is_refused() -> None:
    made = amprewrite.convert(nn.Sequential(nn.Linear(8, 8)).eval(), args=(X,))
    with pytest.raises(amprewrite.errors.UnsupportedError, match="Wrapper takes __d"):
        copy.deepcopy(Wrapper(made))
    twin = Wrapper(copy.deepcopy(made))
    assert torch.equal(twin.inner(X), made(X))
    assert torch.equal(copy.deepcopy(nn.Sequential(made))(X), made(X))


def test_an_extent_that_a_capture_fixes_is_captured_again() -> None:
    """torch captures a GRU for one length, though the length is marked as varying."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(8, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.cell(x[None])[0][0]
            return h.sum(0) / h.shape[0]

    torch.manual_seed(0)
    model = Mean().eval()
    made = amprewrite.convert(model, args=(X,))
    for rows in (3, 5, 7, 5, 3):
        x = torch.linspace(-1, 1, rows * 8).reshape(rows, 8)
        assert relative_error(made(x), model(x)) < 4 * ROUNDING


def test_weights_stored_low_under_inference_mode_can_be_written_to() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    made = amprewrite.convert(model, args=(X,))
    made[0] = nn.Linear(8, 8)
    with torch.inference_mode():
        made(X)
    weight = made.get_parameter("0.weight")
    assert weight.dtype == torch.bfloat16
    with torch.no_grad():
        weight.mul_(2)
    made(X).sum().backward()
    assert weight.grad is not None


def test_a_parametrization_of_a_low_weight_that_fails_is_named() -> None:
    made = amprewrite.convert(nn.Sequential(nn.Linear(8, 8)).eval(), args=(X,))
    nn.utils.parametrizations.weight_norm(made[0])
    wanted = (
        r"part 0 has a parametrization of weights that are stored low.*\boriginal\("
    )
    with pytest.raises(amprewrite.errors.UnsupportedError, match=wanted):
        made(X)


def test_a_hook_for_all_modules_warns_once_that_parts_run_without_it() -> None:
    made = amprewrite.convert(nn.Sequential(nn.Linear(8, 8)).eval(), args=(X,))
    seen = list[Any]()
    with nn.modules.module.register_module_forward_hook(lambda *g: seen.append(g[0])):
        with pytest.warns(UserWarning, match="and on none of its parts; register"):
            made(X)
        made(X)
    assert made in seen
    assert made[0] not in seen


class Reader(nn.Module):
    """A model that reads attributes of its layers, which their own forwards do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)])
        layer: Any = self.layers[0]
        layer.gain, layer.gains, layer.settings = 2.0, [1.0], types.SimpleNamespace(n=1)
        layer.mask = torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        layer: Any
        for layer in self.layers:
            x = layer(x) * layer.gain * layer.gains[0] * layer.settings.n * layer.mask
        return x


OF_A_LAYER: dict[str, Any] = {
    "number": lambda layer: setattr(layer, "gain", 3.0),
    "item": lambda layer: layer.gains.__setitem__(0, 3.0),
    "list": lambda layer: setattr(layer, "gains", [3.0]),
    "setting": lambda layer: setattr(layer.settings, "n", 3),
    "tensor": lambda layer: setattr(layer, "mask", torch.full((8,), 3.0)),
    "element": lambda layer: layer.mask.mul_(3),
}


@pytest.mark.parametrize("args", [None, (X,)], ids=["lazily", "args"])
@pytest.mark.parametrize("name", OF_A_LAYER)
def test_what_a_model_reads_of_its_parts_is_followed(name: str, args: Any) -> None:
    model = Reader().eval()
    converted: Any = amprewrite.convert(model, "off", args=args)
    with torch.no_grad():
        first = converted(X)
        for each in (model, converted):
            OF_A_LAYER[name](each.layers[0])
        assert torch.equal(converted(X), model(X))
        assert not torch.equal(converted(X), first)


class Symmetric(nn.Module):
    """A parametrization."""

    def forward(self, weight: Any) -> Any:
        return weight + weight.T


PARAMETRIZED: dict[str, Any] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda part: parametrize.register_parametrization(
        part, "weight", Symmetric()
    ),
}


@pytest.mark.parametrize("when", ["args", "called", "lazily"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", PARAMETRIZED)
def test_a_parametrization_is_removed_as_from_a_plain_module(
    name: str, when: str, *, whole: bool, training: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    part = PARAMETRIZED[name](nn.Linear(8, 8))
    model = (part if whole else nn.Sequential(part, nn.ReLU())).train(training)
    converted: Any = amprewrite.convert(
        copy.deepcopy(model), "off", args=(x,) if when == "args" else None
    )
    if when == "called":
        converted(x)
    parts: list[Any] = [m if whole else m[0] for m in (model, converted)]
    for parametrized in parts:
        parametrize.remove_parametrizations(parametrized, "weight")
    plain, ours = parts
    assert isinstance(ours, type(plain))
    assert type(ours).__name__ == type(plain).__name__
    assert not parametrize.is_parametrized(ours)
    torch.testing.assert_close(ours.weight, plain.weight)
    torch.testing.assert_close(converted(x), model(x))
    with torch.no_grad():
        ours.weight.mul_(2)
        plain.weight.mul_(2)
    torch.testing.assert_close(converted(x), model(x))
