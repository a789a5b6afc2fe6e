"""Python state that a forward writes: counters, caches, lists, parameters."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
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


def test_a_flag_that_something_is_set_up_is_no_state() -> None:
    def forward(m: Any, x: Any) -> Any:
        m.is_ready = True
        return m.a(x)

    model = Program(forward, a=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(torch.randn(4, 8),))
    assert program.plan.captured == "captured by torch.export"


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
