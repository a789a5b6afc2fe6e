"""Python state that a forward writes: counters, caches, lists, parameters."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from tests.torch_programs import Program, relative_error

ROUNDING = 2.0**-8

WAYS = pytest.mark.parametrize("way", ["export", "dynamo"])
"""Captured at conversion, or at the first call."""


def counter(m: Any, x: Any) -> Any:
    m.n += 1
    return m.a(x) * m.n


def counter_below(m: Any, x: Any) -> Any:
    m.a.calls = getattr(m.a, "calls", 0) + 1
    return m.a(x) * m.a.calls


def switch(m: Any, x: Any) -> Any:
    if m.n == 0:
        m.n = 1
        return m.a(x)
    return m.a(x) * 5


def cache(m: Any, x: Any) -> Any:
    h = m.a(x) if m.kept is None else m.a(x) + m.kept
    m.kept = h.detach()
    return h


def history(m: Any, x: Any) -> Any:
    m.list.append(m.a(x))
    return sum(m.list)


def replaced(m: Any, x: Any) -> Any:
    m.a.bias = nn.Parameter(m.a.bias.detach() + 1)
    return m.a(x)


def stateful(forward: Any) -> Any:
    model: Any = Program(forward, a=nn.Linear(8, 8))
    model.n, model.kept, model.list = 0, None, []
    return model.eval()


@WAYS
@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (counter, "self.n"),
        (counter_below, "self.a.calls"),
        (switch, "self.n"),
        (cache, "self.kept"),
        (history, "self.list"),
        (replaced, "self.a._parameters"),
    ],
)
def test_what_the_forward_writes_is_written_once_a_call(
    way: str, forward: Any, name: str
) -> None:
    model, x = stateful(forward), torch.randn(4, 8)
    reference = copy.deepcopy(model)
    program = amprewrite.convert(model, args=(x,) if way == "export" else None)
    with torch.no_grad():
        for _ in range(3):
            assert relative_error(program(x), reference(x)) < 2 * ROUNDING
    assert (program.n, len(program.list)) == (reference.n, len(reference.list))
    assert (model.n, len(model.list)) == (0, 0)
    said = f"export leaves out the writes of forward to {name}"
    assert (said in program.plan.captured) == (way == "export")


class Config:
    """Settings of a model, as those of transformers."""

    def __init__(self) -> None:
        self.kind: Any = None
        self.text: Any = None


def flag(m: Any, x: Any) -> Any:
    if not hasattr(m, "ready"):
        m.ready = True
        return m.a(x)
    return m.a(x) * 5


def flag_below(m: Any, x: Any) -> Any:
    if not hasattr(m.a, "ready"):
        m.a.ready = True
        return m.a(x)
    return m.a(x) * 5


def name_in_settings(m: Any, x: Any) -> Any:
    if m.config.kind is None:
        m.config.kind = "first"
        return m.a(x)
    return m.a(x) * len(m.config.kind)


def name_in_settings_below(m: Any, x: Any) -> Any:
    if m.config.text.kind is None:
        m.config.text.kind = "first"
        return m.a(x)
    return m.a(x) * 5


@pytest.mark.parametrize("way", ["export", "compile", "around", "dynamo"])
@pytest.mark.parametrize(
    "forward", [flag, flag_below, name_in_settings, name_in_settings_below]
)
def test_a_constant_that_the_first_call_leaves_is_there_for_the_next(
    way: str, forward: Any
) -> None:
    model: Any = Program(forward, a=nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    model.config = Config()
    model.config.text = Config()
    reference = copy.deepcopy(model)
    args = None if way == "dynamo" else (x,)
    program = amprewrite.convert(model, args=args, compile=way == "compile")
    exported = args is not None and forward is not name_in_settings_below
    if args is not None:
        assert (program.plan.captured == "captured by torch.export") == exported
    call = torch.compile(program, backend="eager") if way == "around" else program
    assert state(program) == state(model)
    with torch.no_grad():
        for _ in range(4):
            assert relative_error(call(x), reference(x)) < 2 * ROUNDING
            if exported or way != "around":  # it compiles the code that dynamo captured
                assert state(program) == state(reference)
    assert len(program.plans) == 2, "one is for the state that the first call finds"
    assert state(model) == (False, False, None, None)


def state(m: Any) -> tuple[Any, ...]:
    flags = hasattr(m, "ready"), hasattr(m.a, "ready")
    return *flags, m.config.kind, m.config.text.kind


@pytest.mark.parametrize("forward", [flag, name_in_settings])
def test_a_run_that_is_none_of_the_user_leaves_no_constant(forward: Any) -> None:
    model: Any = Program(forward, a=nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    model.config = Config()
    reference = copy.deepcopy(model)
    program = amprewrite.convert(model, args=(x,))
    for _ in range(2):
        assert amprewrite.verify(model, program, (x,)).ok
    with undisturbed(program), torch.no_grad():
        for _ in range(3):
            program(x)
    with torch.no_grad():
        for _ in range(3):
            assert relative_error(program(x), reference(x)) < 2 * ROUNDING


@WAYS
def test_a_parameter_that_the_forward_writes_to(way: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            m.a.bias.add_(1)
        return m.a(x)

    model, x = Program(forward, a=nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    reference, before = copy.deepcopy(model), model.a.bias.clone()
    program = amprewrite.convert(model, args=(x,) if way == "export" else None)
    for _ in range(3):
        assert relative_error(program(x), reference(x)) < 2 * ROUNDING
    assert torch.equal(model.a.bias, before)


class Box:
    """A value that is no setting."""

    def __init__(self, value: float) -> None:
        self.value = value


class Counts(nn.Module):
    """A module that reads a box, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.box, self.calls = nn.Linear(4, 4), Box(1.0), 0

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return self.linear(x) * self.box.value


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_set_on_a_converted_model_is_read_and_kept(mode: Any) -> None:
    converted = amprewrite.convert(Counts().train(mode))
    x = torch.randn(2, 4)
    for value in (1.0, 5.0):
        converted.box = box = Box(value)
        torch.testing.assert_close(
            converted(x), value * converted.linear(x), atol=0.05, rtol=0.02
        )
        assert converted.box is box
    assert converted.calls == 2


class Recurrent(nn.Module):
    """torch keeps the weights of the layer in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Listed(nn.Module):
    """Its parameter is in a list and in a dict, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.groups = [self.weight]
        self.named = {"weight": self.weight, "more": [self.weight]}

    def forward(self, x: Any) -> Any:
        x = x @ self.groups[0] + x @ self.named["weight"]
        return x @ self.named["more"][0]


class Tied(nn.Module):
    """A layer that is not a submodule has a parameter of one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        twin = nn.Linear(8, 8)
        twin.weight, twin.bias = self.layer.weight, self.layer.bias
        self.twins = [twin]

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.twins[0](x)


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("kind", [Recurrent, Listed, Tied])
def test_a_step_captures_nothing_where_parameters_are_in_containers_too(
    kind: Any, *, lazy: bool
) -> None:
    """Programs read them by name, so that an optimizer's write changes no program."""
    torch.manual_seed(0)
    plain, x = kind().train(), torch.randn(2, 4, 8)
    model = copy.deepcopy(plain)
    known: dict[str, Any] = {} if lazy else {"args": (x,)}
    converted = amprewrite.convert(model, "bf16", **known)
    for module in (plain, converted):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    assert len(converted.plans) == 1
    assert relative_error(converted(x), plain(x)) < 0.02


def weight_replaced(model: Any) -> None:
    model.weight = nn.Parameter(torch.full((8, 8), 2.0))


def listed_anew(model: Any) -> None:
    model.groups[0] = torch.full((8, 8), 2.0)


def written(model: Any) -> None:
    with torch.no_grad():
        model.weight.mul_(2)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("change", [weight_replaced, listed_anew, written])
def test_a_parameter_in_a_container_is_the_one_that_is_there(
    change: Any, *, lazy: bool, training: bool
) -> None:
    plain, x = Listed().train(training), torch.randn(2, 4, 8)
    known: dict[str, Any] = {} if lazy else {"args": (x,)}
    converted = amprewrite.convert(copy.deepcopy(plain), "bf16", **known)
    with torch.set_grad_enabled(training):
        converted(x)
        for module in (plain, converted):
            change(module)
        assert relative_error(converted(x), plain(x)) < 0.02


class Aliased(nn.Module):
    """An attribute is an alias of the parameter, which has no gradient."""

    def __init__(self, *, listed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.alias = self.weight.detach()
        self.groups = [self.weight] if listed else []

    def forward(self, x: Any) -> Any:
        x = x @ self.weight + 2 * (x @ self.alias)
        return x + x @ self.groups[0] if self.groups else x


@pytest.mark.parametrize("listed", [False, True])
def test_an_alias_of_a_parameter_has_no_gradient(*, listed: bool) -> None:
    """Where a container has the parameter too, dynamo captures the model."""
    plain, x = Aliased(listed=listed).train(), torch.randn(2, 4, 8)
    converted = amprewrite.convert(copy.deepcopy(plain), "bf16", args=(x,))
    for module in (plain, converted):
        module(x).sum().backward()
    assert relative_error(converted.weight.grad, plain.weight.grad) < 0.02
