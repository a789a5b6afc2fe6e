"""Casts that a model means and those that follow, told by a second trace."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN, tell_casts
from amprewrite.frameworks.torch_fx.capture.export import export_model
from tests.torch_programs import Program

LOW = torch.bfloat16
FULL = torch.float32


def told(function: Callable[..., Any], *args: Any, **parts: Any) -> list[str]:
    """Return what is known of each node that gives float32 by name, in order."""
    return _told(Program(function, **parts).eval(), *args)[0]


def _told(model: nn.Module, *args: Any) -> tuple[list[str], list[str]]:
    module = export_model(model, args, {}).module
    notes = list(tell_casts(module, model, args, {}, LOW))
    dtyped = ("aten.to", "aten.type_as", "aten.softmax", "aten.zeros", "aten.full")
    calls = [n for n in module.graph.nodes if str(n.target).startswith(dtyped)]
    return [n.meta.get(CHOSEN, "") for n in calls], notes


def x() -> torch.Tensor:
    return torch.randn(4, 8)


@pytest.mark.parametrize(
    ("function", "chosen"),
    [
        (lambda _, x: x.float() + 1, "pinned"),
        (lambda _, x: x.to(torch.float32) + 1, "pinned"),
        (lambda _, x: x.type(torch.float32) + 1, "pinned"),
        (lambda _, x: x.to(x.dtype) + 1, "follows"),
        (lambda _, x: x.type(x.dtype) + 1, "follows"),
        (lambda _, x: x.to(dtype=x.dtype, copy=True) + 1, "follows"),
        (lambda _, x: (x > 0).to(x.dtype) + 1, "follows"),
        (lambda _, x: (x > 0).float() + 1, "pinned"),
        (lambda _, x: x.softmax(-1, dtype=FULL) + 1, "pinned"),
        (lambda _, x: nn.functional.softmax(x, -1, dtype=FULL) + 1, "pinned"),
        (lambda _, x: x.softmax(-1, dtype=x.dtype) + 1, "follows"),
        (lambda _, x: torch.zeros(4, 8, dtype=FULL) + x, "pinned"),
        (lambda _, x: torch.zeros(4, 8, dtype=x.dtype) + x, "follows"),
        (lambda _, x: torch.full((8,), 2.0, dtype=x.dtype) + x, "follows"),
        (lambda m, x: x.to(m.w.dtype) + m.w, "follows"),
    ],
)
def test_a_site_is_told_by_what_it_gives_in_a_low_run(
    function: Callable[..., Any], chosen: str
) -> None:
    assert told(function, x(), w=nn.Parameter(x())) == [chosen]


def test_two_casts_on_one_line_are_told_in_their_order() -> None:
    def both(_: Any, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 2).to(x.dtype)

    assert told(both, x()) == ["pinned", "follows"]


def test_a_line_that_runs_often_is_told_for_each_turn() -> None:
    def layers(_: Any, x: torch.Tensor) -> torch.Tensor:
        for _turn in range(3):
            full = x.float()
            x = (full * 2).to(x.dtype)
        return x

    assert told(layers, x()) == ["pinned", "follows"] * 3


def test_a_cast_after_another_full_value_is_pinned() -> None:
    """What follows a value that stays full gives full in both traces."""

    def after(_: Any, x: torch.Tensor) -> torch.Tensor:
        full = x.float()
        return x.to(full.dtype) + 1

    assert told(after, x()) == ["pinned", "pinned"]


def test_operands_of_two_dtypes_do_not_stop_the_second_run() -> None:
    def mixed(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.head(torch.zeros(2, 8, dtype=FULL))  # full by low
        return x.to(y.dtype) + y.sum()

    assert told(mixed, x(), head=nn.Linear(8, 8)) == ["pinned", "follows"]


def test_a_second_run_that_stops_leaves_the_rest_in_doubt_and_says_so() -> None:
    def stopping(_: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.to(x.dtype)
        if x.dtype != FULL:
            msg = "only float32 here"
            raise TypeError(msg)
        return x.float() + 1

    chosen, (note,) = _told(Program(stopping).eval(), x())
    assert "does not tell: TypeError" in note
    assert chosen == ["follows", ""]
    assert "casts to float32 at torch_programs.py:" in note
    assert "TypeError: only float32 here" in note
    assert "are taken as meant" in note


def test_the_model_and_its_arguments_stay_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.calls = 0

        def forward(self, held: dict[str, torch.Tensor]) -> torch.Tensor:
            self.calls += 1
            held["seen"] = held["x"]
            return self.norm(held["x"].float())

    model, held = Counting(), {"x": x()}
    module = export_model(model, ({"x": held["x"]},), {}).module
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = model.calls
    assert not list(tell_casts(module, model, (held,), {}, LOW))
    assert (model.calls, list(held)) == (calls, ["x"])
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(value.dtype == before[name].dtype for name, value in after.items())


def test_a_model_without_such_casts_is_not_run_again() -> None:
    class Once(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype == LOW:
                pytest.fail("ran in low precision")
            return x.double() + x

    assert _told(Once(), x()) == ([""], [])


def test_a_line_of_a_helper_is_told_apart_from_its_caller() -> None:
    def function(_: Any, x: torch.Tensor) -> torch.Tensor:
        (y,) = [(t.float() * 2).to(t.dtype) for t in (x,)]  # a frame on the same line
        return y + 1

    assert told(function, x()) == ["pinned", "follows"]


def test_casts_to_low_on_the_same_line_are_counted_too() -> None:
    def function(_: Any, x: torch.Tensor) -> torch.Tensor:
        return ((x.float() * 2).to(x.dtype) + 1).bfloat16()

    assert told(function, x()) == ["pinned", "follows", ""]


def test_bodies_without_gradients_are_told() -> None:
    def function(_: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x.float() * 2).to(x.dtype)
        return x * scale

    module = export_model(Program(function).eval(), (x(),), {}).module
    assert not list(tell_casts(module, Program(function).eval(), (x(),), {}, LOW))
    casts = [
        node.meta[CHOSEN]
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
        if CHOSEN in node.meta
    ]
    assert casts == ["pinned", "follows"]


def test_other_calls_in_the_second_run_leave_a_line_in_doubt() -> None:
    def function(_: Any, x: torch.Tensor) -> torch.Tensor:
        for _turn in range(1 if x.dtype == FULL else 2):
            full = x.float() * 2
            x = full.to(x.dtype)
        return x

    assert _told(Program(function).eval(), x()) == (["", ""], [])


def test_the_second_run_is_quiet(
    recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    def function(m: Any, x: torch.Tensor) -> torch.Tensor:
        full = m.norm(x.float())
        return m.heads(full, full, full)[0].to(x.dtype)

    heads = nn.MultiheadAttention(8, 2, batch_first=True)
    told(function, x()[None], norm=nn.RMSNorm(8), heads=heads)
    assert not recwarn.list
    assert "Traceback" not in capfd.readouterr().err
