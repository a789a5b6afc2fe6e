"""What is converted, how it is captured, and what comes back."""

import copy
import sys
from collections import Counter
from itertools import groupby
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import NotCapturedError
from tests.torch_programs import LOW, Program, in_full, relative_error

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""


def a_model() -> Any:
    def forward(m: Any, x: Any) -> Any:
        return {"p": torch.softmax(m.a(x), -1), "n": 3}

    return Program(forward, a=nn.Linear(8, 8)).eval()


def x() -> Any:
    return torch.randn(4, 8)


def test_a_module_is_captured_by_export() -> None:
    model, value = a_model(), x()
    program = amprewrite.convert(model, args=(value,))
    assert isinstance(program, Program)
    assert program.plan.captured == "captured by torch.export"
    ours, theirs = in_full(program, value), in_full(model, value)
    assert list(ours) == list(theirs)
    assert ours["n"] == 3
    assert relative_error(ours, theirs) < 2 * ROUNDING


def test_an_exported_program_is_taken_as_it_is() -> None:
    model, value = a_model(), x()
    exported = torch.export.export(model, (value,), strict=False)
    program = amprewrite.convert(exported)
    assert program.plan.captured == "given as an exported program"
    assert relative_error(in_full(program, value), in_full(model, value)) < 2 * ROUNDING
    assert list(program.state_dict()) == list(model.state_dict())


def test_a_graph_module_at_the_aten_level_is_taken_as_it_is() -> None:
    model, value = a_model(), x()
    exported = torch.export.export(model, (value,), strict=False)
    graph = exported.module(check_guards=False)
    before = graph.code
    program = amprewrite.convert(graph, args=(value,))
    assert program.plan.captured == "given as an ATen-level graph"
    assert relative_error(in_full(program, value), in_full(model, value)) < 2 * ROUNDING
    assert graph.code == before, "the graph that was given is not changed"
    assert torch.equal(in_full(graph, value)["p"], in_full(model, value)["p"])


def test_a_symbolically_traced_module_is_captured_anew() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    traced = torch.fx.symbolic_trace(model)
    program = amprewrite.convert(traced, args=(x(),))
    assert program.plan.captured == "captured by torch.export"
    assert program.plan.lowered


def test_the_model_is_not_changed() -> None:
    model, value = a_model(), x()
    before, out = copy.deepcopy(model.state_dict()), in_full(model, value)
    amprewrite.convert(model, args=(value,))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(in_full(model, value)["p"], out["p"])
    assert not model.training


def test_without_arguments_the_first_call_captures() -> None:
    program = amprewrite.convert(a_model())
    with pytest.raises(NotCapturedError):
        _ = program.plan
    in_full(program, x())
    assert program.plan.captured == "captured by torch.export"
    program = amprewrite.convert(a_model())
    program(x())  # which may be followed by a backward pass
    assert "torch.compile (dynamo)" in program.plan.captured


@pytest.mark.parametrize("given", [{"args": ()}, {"kwargs": {}}])
def test_a_model_may_have_no_arguments(given: dict[str, Any]) -> None:
    model = Program(lambda m: m.w @ m.w, w=nn.Parameter(torch.randn(8, 8))).eval()
    program = amprewrite.convert(model, **given)
    assert relative_error(in_full(program), in_full(model)) < 2 * ROUNDING


def test_inspecting_a_converted_module_gives_its_plan() -> None:
    program = amprewrite.convert(a_model(), args=(x(),))
    assert amprewrite.inspect(program) is program.plan


def test_inspecting_makes_the_plan_that_converting_applies() -> None:
    model, value = a_model(), x()
    plan = amprewrite.inspect(model, args=(value,))
    assert plan == amprewrite.convert(model, args=(value,)).plan


@pytest.mark.parametrize("training", [True, False, None])
@pytest.mark.parametrize("mode", [True, False])
def test_training_is_what_is_asked_or_the_mode_of_the_model(
    *, training: bool | None, mode: bool
) -> None:
    model = a_model().train(mode)
    program = amprewrite.convert(model, args=(x(),), training=training)
    trains = mode if training is None else training
    wanted = torch.float32 if trains else LOW
    assert program.get_parameter("a.weight").dtype == wanted
    assert program.training is mode


def test_a_low_dtype_may_be_asked_for_the_outputs() -> None:
    policy = "params=float32,compute=bfloat16,output=bfloat16"
    program = amprewrite.convert(a_model(), policy, args=(x(),))
    assert in_full(program, x())["p"].dtype == LOW


def test_float16_on_a_cpu_is_warned_of() -> None:
    program = amprewrite.convert(a_model(), "fp16", args=(x(),))
    assert program.plan.warnings[0].startswith("float16 on a CPU: ")


def test_a_conversion_of_a_conversion_adds_nothing() -> None:
    value = x()
    once = amprewrite.convert(a_model(), args=(value,))
    exported = torch.export.export(once, (value,), strict=False)
    with pytest.warns(amprewrite.errors.AmpWarning, match="rewritten 0 of"):
        twice = amprewrite.convert(exported)
    assert twice.casts == ()
    assert torch.equal(in_full(twice, value)["p"], in_full(once, value)["p"])


def test_a_converted_module_may_be_converted_again() -> None:
    value = x()
    once = amprewrite.convert(a_model(), args=(value,))
    with pytest.warns(amprewrite.errors.AmpWarning, match="rewritten 0 of"):
        twice = amprewrite.convert(once, args=(value,))
    assert torch.equal(in_full(twice, value)["p"], in_full(once, value)["p"])


@pytest.mark.slow
def test_the_result_may_be_compiled_by_inductor() -> None:
    model, value = a_model(), x()
    program = amprewrite.convert(model, args=(value,), target="compiled", compile=True)
    assert relative_error(in_full(program, value), in_full(model, value)) < 2 * ROUNDING


WAY_IN = {"assemble", "convert", "strategies"}
"""Chapters and a folder through which every conversion goes."""


def test_a_conversion_goes_once_through_each_module_on_its_way() -> None:
    """Down to the first cast node, read in the order in which functions are called."""
    model, value = a_model(), x()
    package = "amprewrite.frameworks.torch_fx."
    entered: list[str] = []
    above: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event != "call" or not name.startswith("amprewrite"):
            return
        if entered[-1:] != [name]:
            entered.append(name)
        if frame.f_code.co_name == "_cast_node" and not above:
            while frame is not None:
                above.append(frame.f_globals.get("__name__", ""))
                frame = frame.f_back

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        amprewrite.convert(model, args=(value,))
    finally:
        sys.setprofile(before)
    parts = [n.removeprefix(package) for n in entered if n.startswith(package)]
    way = Counter(part for part in parts if part.partition(".")[0] in WAY_IN)
    assert {part.partition(".")[0] for part in way} == WAY_IN
    assert max(way.values()) <= 3
    calls = [n for n, _ in groupby(n for n in above if n.startswith("amprewrite"))]
    assert calls[-1] == "amprewrite.api"
    assert set(Counter(calls).values()) == {1}
