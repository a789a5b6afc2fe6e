"""What a framework is asked for, and what plans for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amprewrite import dispatch
from amprewrite.errors import ArgumentError, PolicyError, UnsupportedError
from amprewrite.ir import parse_graph
from amprewrite.passes.cost.cost_model import COMPILED, EAGER
from amprewrite.plan.hardware import Device, Kernels, save_calibration
from amprewrite.policy import load_policy
from tests.calibrations import DEVICE, calibration, slow_below

GRAPH = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %y: f32[4,8]
return %y
"""


def test_a_planner_makes_plans_by_policy_and_overrides() -> None:
    graph = parse_graph(GRAPH)
    plan = dispatch.planner("bf16")(
        graph, keep_parameter_dtype=False, captured="by hand"
    )
    assert (plan.captured, len(plan.lowered)) == ("by hand", 1)
    assert plan.target == "eager"
    compiled = dispatch.planner("bf16", model=COMPILED)
    assert compiled(graph, keep_parameter_dtype=False, captured="").target == "compiled"
    deny = dispatch.planner("bf16", [{"op": "linear", "class": "deny"}])
    assert deny(graph, keep_parameter_dtype=False, captured="").lowered == ()


def test_a_planner_keeps_no_memory_of_rules_that_matched() -> None:
    plan = dispatch.planner("bf16", [{"op": "linear", "class": "allow"}])
    graph, empty = parse_graph(GRAPH), parse_graph("return")
    assert plan(graph, keep_parameter_dtype=False, captured="").warnings == ()
    assert any(
        "unused rule" in w
        for w in plan(empty, keep_parameter_dtype=False, captured="").warnings
    )


class _Machine:
    """Stand in for the framework of a model: it is on a device that there is not."""

    @staticmethod
    def device_of(*_: Any) -> Device:
        return DEVICE

    @staticmethod
    def kernels(*_: Any) -> Kernels:
        return Kernels(accumulators=True)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(dispatch, "framework_of", lambda _: _Machine)
    save_calibration(calibration(bfloat16=slow_below(10**9)))


@pytest.mark.usefixtures("measured")
def test_prices_are_those_measured_on_the_device() -> None:
    bf16 = dispatch.prices(None, load_policy("bf16"), "eager")
    assert (bf16.source, bf16.launch) == (f"measured on {DEVICE}", 100)
    assert (
        bf16.speedup < 1 < dispatch.prices(None, load_policy("fp16"), "eager").speedup
    )
    assert dispatch.prices(None, load_policy("bf16"), "compiled").launch == 0


@pytest.mark.usefixtures("measured")
def test_prices_are_the_default_ones_where_nothing_fits(tmp_path: Path) -> None:
    assert dispatch.prices(None, load_policy("off"), "eager") is EAGER
    doubles = replace(load_policy("bf16"), full="float64")
    found = dispatch.prices(None, doubles, "eager")
    assert found == replace(EAGER, kernels=Kernels(accumulators=True))
    for file in (tmp_path / "amprewrite").iterdir():
        file.unlink()
    assert dispatch.prices(None, load_policy("bf16"), "compiled") == replace(
        COMPILED, kernels=Kernels(accumulators=True)
    )
    with pytest.raises(UnsupportedError, match="unknown target 'gpu'"):
        dispatch.prices(None, load_policy("bf16"), "gpu")


@pytest.mark.usefixtures("measured")
def test_a_planner_plans_by_the_prices_that_it_is_given() -> None:
    graph = parse_graph(GRAPH)
    cost = dispatch.prices(None, load_policy("bf16"), "eager")
    for placement, lowered in (("optimal", 0), ("promote", 1)):
        plan = dispatch.planner("bf16", (), placement, cost)(
            graph, keep_parameter_dtype=False, captured=""
        )
        assert (len(plan.lowered), plan.prices) == (lowered, cost.source)
    assert (
        dispatch.planner("bf16")(graph, keep_parameter_dtype=False, captured="").prices
        == "default"
    )


@pytest.mark.usefixtures("measured")
def test_nothing_lowered_is_explained_by_measured_prices() -> None:
    cost = dispatch.prices(None, load_policy("bf16"), "eager")
    plan = dispatch.planner("bf16", (), "optimal", cost)(
        parse_graph(GRAPH), keep_parameter_dtype=False, captured=""
    )
    said = f"it would cost more than it saves by prices measured on {DEVICE}"
    assert any(said in line for line in plan.warnings)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("bf61",), PolicyError),
        (("bf16", [{"op": "exp"}]), PolicyError),
        (("bf16", (), "best"), UnsupportedError),
        (("bf16", {"op": "exp", "class": "deny"}), ArgumentError),
    ],
)
def test_a_planner_finds_mistakes_at_once(
    given: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        dispatch.planner(*given)


@pytest.mark.parametrize(
    ("given", "found"), [(None, "compiled"), ("eager", "eager"), ("compiled",) * 2]
)
def test_a_program_is_priced_as_its_framework_runs_it(
    given: str | None, found: str
) -> None:
    pytest.importorskip("jax")
    asked = dispatch.Asked(len, load_policy("bf16"), (), None, (), given)
    assert (asked.runs, asked.prices.target) == (found, found)


def test_a_module_of_torch_is_priced_as_it_runs_op_by_op() -> None:
    torch = pytest.importorskip("torch")
    policy, model = load_policy("bf16"), torch.nn.Linear(2, 2)
    asked = dispatch.Asked(model, policy, (), None, (), None)
    assert (asked.runs, asked.prices.target) == ("eager", "eager")


def test_recompute_is_a_truth_value() -> None:
    assert dispatch.recomputer(recompute=False) is None
    assert dispatch.recomputer(recompute=True) is not None
    with pytest.raises(
        ArgumentError, match=r"recompute='norms'; want True .* or False"
    ):
        dispatch.recomputer(recompute="norms")


def test_a_planner_knows_the_values_that_make_exact_arguments() -> None:
    graph = parse_graph("""%x: f32[4] input
a = matmul(%x) -> %a: f32[4]
sin = sin(%a) -> %s: f32[4]
b = matmul(%x) -> %b: f32[4]
return %s, %b""")
    plan = dispatch.planner("bf16")
    assert plan.exact_values(graph) == {"a", "x"}
    assert plan.exact_values(graph, ["b"]) == {"a", "x", "b"}
    assert not dispatch.planner("off").exact_values(graph, ["b"])
    assert not dispatch.planner("autocast-cuda").exact_values(graph, ["b"])
