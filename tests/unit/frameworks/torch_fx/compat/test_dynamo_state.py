"""What is read of dynamo while it captures, by private names."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.compat import compiling


class Model(nn.Module):
    def forward(self, x: Any, times: int = 1) -> Any:
        return x * times


def captures(model: Any, *calls: Any, **given: Any) -> list[Any]:
    """What is read in the backend, at each capture."""
    found: list[Any] = []

    def run(module: Any, _: Any) -> Any:
        converter = compiling.current_converter()
        code, owner = compiling.current_code(), compiling.current_self()
        last = compiling.is_last_capture(converter)
        found.append((converter, code, owner, last))
        compiling.capture_on(converter)
        return module.forward

    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend=run, dynamic=False, **given)
    for call in calls:
        compiled(*call)
    return [compiled, *found]


X = torch.ones(2)


def test_the_frame_of_a_module_is_its_forward() -> None:
    model = Model()
    compiled, (converter, code, owner, last) = captures(model, (X,))
    assert (code, owner, last) == (Model.forward.__code__, model, False)
    assert converter in compiling.converters(compiled)


def test_the_frame_of_a_function_has_no_self() -> None:
    def function() -> Any:
        return torch.ones(2) + X

    compiled, (converter, code, owner, _) = captures(function, (), fullgraph=True)
    assert (code, owner) == (function.__code__, None)
    assert converter in compiling.converters(compiled)


def test_outside_of_a_capture_there_is_no_frame() -> None:
    assert compiling.current_converter() is None
    assert compiling.current_code() is None
    assert compiling.current_self() is None


@pytest.mark.parametrize("model", [Model(), print, 3])
def test_what_is_not_compiled_has_no_converter(model: Any) -> None:
    assert compiling.converters(model) == []


def test_more_captures_are_made_than_by_default() -> None:
    _, *found = captures(Model(), *((X, times) for times in range(12)))
    assert len(found) == 12
    assert not any(last for *_, last in found)


@pytest.mark.skipif(
    "recompile_limit" not in inspect.signature(torch.compile).parameters,
    reason="this torch has no limit of one compilation",
)
def test_the_limit_of_the_user_stays() -> None:
    calls = [(X, times) for times in range(4)]
    _, *found = captures(Model(), *calls, recompile_limit=2)
    assert [last for *_, last in found] == [False, True]


@pytest.mark.parametrize(("sets_apart", "expected"), [(False, 1), (True, 3)])
def test_equal_backends_are_set_apart(sets_apart: Any, expected: int) -> None:
    captured: list[Any] = []

    def run(module: Any, _: Any) -> Any:
        captured.append(module)
        if sets_apart:
            compiling.set_apart(compiling.current_converter())
        return module.forward

    torch.compiler.reset()
    model = Model()
    for _ in range(3):
        compiled: Any = torch.compile(model, backend=run)
        compiled(X)
        compiled(X)
    assert len(captured) == expected


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()

    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        return self.inner.forward(x)


def test_the_outermost_module_is_the_compiled_one() -> None:
    found: list[Any] = []

    def run(module: Any, _: Any) -> Any:
        found.append(compiling.outermost_module())

        def call(*inputs: Any) -> Any:
            found.append(compiling.outermost_module())
            return module.forward(*inputs)

        return call

    torch.compiler.reset()
    part = Around()
    whole: Any = nn.Sequential(torch.compile(part, backend=run))
    whole(X)
    assert found == [part, part]
    model = Model()
    torch.compile(lambda x: model(x) + 1, backend=run)(X)
    assert found[2:] == [None, None]


def test_placeholders_have_their_sources() -> None:
    found: list[Any] = []

    def run(module: Any, _: Any) -> Any:
        found.append(compiling.parameter_sources(module))
        return module.forward

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Any) -> Any:
            return x * self.w

    torch.compile(Weighted(), backend=run)(X)
    assert sorted(found[0].values()) == ["L['self']._parameters['w']", "L['x']"]


def test_a_transform_is_seen_from_inside() -> None:
    seen = list[bool]()

    def noted(x: Any) -> Any:
        seen.append(compiling.inside_transform())
        return x.sum()

    x = torch.ones(2)
    noted(x)
    torch.func.grad(noted)(x)
    torch.func.vmap(noted)(x)
    noted(x)
    assert seen == [False, True, True, False]


def test_a_method_with_a_break_inside_of_a_loop_is_skipped() -> None:
    class Looping(nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(2):
                torch._dynamo.graph_break()
                x = self.step(x)
            return x

        def step(self, x: Any) -> Any:
            return x + 1

    found: list[Any] = []

    def run(module: Any, _: Any) -> Any:
        found.append(compiling.skipped_methods())
        return module.forward

    torch.compiler.reset()
    torch.compile(Looping(), backend=run)(X)
    assert [code.co_name for code in found[0]] == ["forward"]


def test_an_error_of_dynamo_is_told_apart_with_the_line_that_it_traced() -> None:
    untyped: Any = torch

    def refuse(_: Any) -> None:
        message = "refused"
        raise RuntimeError(message)

    def function(x: Any) -> Any:
        untyped._dynamo.comptime.comptime(refuse)
        return x * 2

    with pytest.raises(RuntimeError) as raised:
        torch.compile(function, backend="eager")(torch.ones(2))
    assert compiling.is_of_dynamo(raised.value)
    assert compiling.failing_line(raised.value).rpartition(":")[0] == __file__
    assert not compiling.is_of_dynamo(RuntimeError())
    assert compiling.failing_line(RuntimeError()) == ""


def test_functions_are_called_around_each_capture() -> None:
    events = list[str]()

    def before() -> None:
        events.append("before")

    def after() -> None:
        events.append("after")

    torch.compiler.reset()
    model = torch.compile(Model(), backend="eager")
    with compiling.around_captures(before, after):
        model(torch.ones(2))
        model(torch.ones(2))
        assert events == ["before", "after"]
    torch.compile(nn.ReLU(), backend="eager")(torch.ones(2))
    assert events == ["before", "after"]
