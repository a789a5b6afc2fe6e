"""The public functions: which framework, which options."""

import inspect as signatures
import subprocess
import sys
from typing import Any

import pytest

import amprewrite
from amprewrite import api
from amprewrite.errors import PolicyError, UnsupportedError
from amprewrite.ir import parse_graph

GRAPH = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %y: f32[4,8]
return %y
"""


def names(function: Any) -> list[str]:
    return list(signatures.signature(function).parameters)


def test_the_public_names_are_there() -> None:
    for name in amprewrite.__all__:
        assert hasattr(amprewrite, name)
    assert {"Plan", "Policy", "Rule", "convert", "inspect", "verify"} <= set(
        amprewrite.__all__
    )


def test_the_public_signatures_are_those_of_the_docs() -> None:
    assert names(amprewrite.convert) == [
        *("model", "policy", "args", "kwargs", "placement", "tolerance", "overrides"),
        *("plan", "dynamic_shapes", "training", "target", "compile"),
    ]
    assert names(amprewrite.inspect)[:4] == ["model", "policy", "args", "kwargs"]
    assert names(amprewrite.verify)[:7] == [
        *("original", "converted", "args", "kwargs"),
        *("reference", "gradients", "rtol"),
    ]


@pytest.mark.parametrize("function", [amprewrite.convert, amprewrite.inspect])
@pytest.mark.parametrize("model", [None, "bert", object(), int])
def test_what_is_no_model_is_refused(function: Any, model: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        function(model, args=())
    message = str(caught.value)
    assert message.startswith(f"cannot convert a {type(model).__name__}; want a ")


def test_a_model_is_refused_before_torch_is_loaded() -> None:
    code = (
        "import amprewrite, sys\n"
        "try: amprewrite.convert(3, args=())\n"
        "except amprewrite.errors.UnsupportedError: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_target_is_one_of_those_there_are() -> None:
    with pytest.raises(UnsupportedError, match="want eager or compiled"):
        amprewrite.convert(None, target="gpu")


def test_a_tolerance_needs_a_placement_that_takes_one() -> None:
    with pytest.raises(UnsupportedError, match="leave tolerance=None"):
        amprewrite.convert(None, tolerance=1e-3)


def test_a_tolerance_and_a_plan_exclude_each_other() -> None:
    plan: Any = object()
    with pytest.raises(UnsupportedError, match="pass one"):
        amprewrite.convert(None, tolerance=1e-3, placement="optimal", plan=plan)


def test_a_tolerance_needs_a_bound_and_a_known_placement() -> None:
    with pytest.raises(amprewrite.errors.ToleranceError, match="tolerance is -1"):
        amprewrite.inspect(None, tolerance=-1, placement="optimal")
    with pytest.raises(UnsupportedError, match="unknown placement 'best'"):
        amprewrite.inspect(None, tolerance=1e-3, placement="best")


def test_jax_takes_no_tolerance_yet() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for function in (amprewrite.convert, amprewrite.inspect):
        with pytest.raises(UnsupportedError, match="not there yet for JAX"):
            function(
                lambda x: x @ x,
                args=(jnp.ones((4, 4)),),
                placement="optimal",
                tolerance=1e-3,
            )


def test_a_planner_makes_plans_by_policy_and_overrides() -> None:
    graph = parse_graph(GRAPH)
    plan = api.planner("bf16")(graph, training=False, captured="by hand")
    assert (plan.captured, len(plan.lowered)) == ("by hand", 1)
    deny = api.planner("bf16", [{"op": "linear", "class": "deny"}])
    assert deny(graph, training=False, captured="").lowered == ()


def test_a_planner_keeps_no_memory_of_rules_that_matched() -> None:
    plan = api.planner("bf16", [{"op": "linear", "class": "allow"}])
    graph, empty = parse_graph(GRAPH), parse_graph("return")
    assert plan(graph, training=False, captured="").warnings == ()
    assert any(
        "unused rule" in w for w in plan(empty, training=False, captured="").warnings
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("bf61",), PolicyError),
        (("bf16", [{"op": "exp"}]), PolicyError),
        (("bf16", (), "best"), UnsupportedError),
    ],
)
def test_a_planner_finds_mistakes_at_once(
    given: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        api.planner(*given)
