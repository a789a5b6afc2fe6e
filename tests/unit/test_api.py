"""The public functions: which framework, which options."""

import inspect as signatures
import subprocess
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any, cast, get_type_hints

import pytest

import amprewrite
from amprewrite import api
from amprewrite.errors import (
    ArgumentError,
    PlanMismatchError,
    PolicyError,
    UnsupportedError,
)
from amprewrite.plan.bounds import Point
from amprewrite.user_code import is_in
from amprewrite.verify import Report
from tests.plan_text import plan_of


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
        *("plan", "dynamic_shapes", "training", "target", "compile", "device"),
        *("lowering", "recompute"),
    ]
    assert names(amprewrite.inspect)[:4] == ["model", "policy", "args", "kwargs"]
    assert names(amprewrite.verify)[:7] == [
        *("original", "converted", "args", "kwargs"),
        *("reference", "gradients", "rtol"),
    ]


def public_functions() -> Iterator[FunctionType]:
    """The functions, and the methods of the classes that are not generated."""
    given = [getattr(amprewrite, name) for name in amprewrite.__all__]
    for found in (*vars(api).values(), *given, Report):
        parts = vars(found).values() if isinstance(found, type) else [found]
        for part in parts:
            function = getattr(part, "fget", getattr(part, "__func__", part))
            if isinstance(function, FunctionType):
                yield function


def test_annotations_are_found_after_a_light_import() -> None:
    """As documentation tools and validators of calls read them."""
    written = {
        f for f in public_functions() if is_in(signatures.getfile(f), "amprewrite")
    }
    hints = {f.__qualname__: get_type_hints(f) for f in written}
    assert {"convert", "inspect", "pareto", "calibrate", "Plan.load"} <= set(hints)
    assert hints["pareto"]["return"] == tuple[Point, ...]
    assert [name for name, found in hints.items() if "return" not in found] == []


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
    torch = pytest.importorskip("torch")
    model, args = torch.nn.Linear(512, 512).eval(), (torch.randn(64, 512),)
    with pytest.raises(UnsupportedError, match="leave tolerance=None"):
        amprewrite.convert(model, args=args, tolerance=1e-3, placement="promote")
    plan = amprewrite.convert(model, args=args, tolerance=0.5).plan
    assert plan.placement == "optimal"
    assert plan.predicted_error is not None
    assert amprewrite.inspect(model, args=args).placement == "promote"


def test_a_tolerance_and_a_plan_exclude_each_other() -> None:
    plan = plan_of("%x: f32[2] input\nexp = exp(%x) -> %y: f32[2]\nreturn %y")
    with pytest.raises(UnsupportedError, match="so that it takes no tolerance"):
        amprewrite.convert(None, tolerance=1e-3, plan=plan)
    with pytest.raises(UnsupportedError, match="so that it takes no placement"):
        amprewrite.convert(None, placement="optimal", plan=plan)
    wrong: Any = "plan.json"
    with pytest.raises(ArgumentError, match="plan is a str; want a Plan"):
        amprewrite.convert(None, plan=wrong)


def test_a_plan_brings_its_policy() -> None:
    plan = plan_of("%x: f32[2] input\nexp = exp(%x) -> %y: f32[2]\nreturn %y")
    with pytest.raises(PlanMismatchError, match=r"made by policy 'bf16' .* 'fp16'"):
        amprewrite.convert(None, "fp16", plan=plan)


def test_a_tolerance_needs_a_bound_and_a_known_placement() -> None:
    with pytest.raises(amprewrite.errors.ToleranceError, match="tolerance is -1"):
        amprewrite.inspect(None, tolerance=-1, placement="optimal")
    with pytest.raises(UnsupportedError, match="unknown placement 'best'"):
        amprewrite.inspect(None, tolerance=1e-3, placement="best")


def refused(function: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        function(*given, **named)
    return str(caught.value)


def a_torch_call() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    return torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)


def a_jax_call() -> tuple[Any, Any]:
    jax = pytest.importorskip("jax")
    return jax.numpy.sin, jax.numpy.ones(4)


@pytest.mark.parametrize("call", [a_torch_call, a_jax_call])
@pytest.mark.parametrize("function", ["convert", "inspect", "pareto"])
def test_call_arguments_that_are_no_tuple_are_refused(function: str, call: Any) -> None:
    model, x = call()
    entry = getattr(amprewrite, function)
    assert "args=(x,), with a comma" in refused(entry, model, args=x)
    assert "args is a list; want a tuple" in refused(entry, model, args=[x])
    assert "keyword arguments go to kwargs=" in refused(entry, model, args={"x": x})
    assert "kwargs is a tuple; want a dict" in refused(entry, model, kwargs=(x,))
    rule = {"op": "linear", "class": "deny"}
    message = refused(entry, model, args=(x,), overrides=rule)
    assert message.startswith("overrides is a dict; want a list of rules: overrides=[")


@pytest.mark.parametrize("call", [a_torch_call, a_jax_call])
def test_verify_refuses_keyword_arguments_in_the_place_of_args(call: Any) -> None:
    model, x = call()
    converted = amprewrite.convert(model, "off", args=(x,))
    verify = amprewrite.verify
    assert "keyword arguments go to kwargs=" in refused(
        verify, model, converted, {"input": x}
    )
    assert "args=(x,), with a comma" in refused(verify, model, converted, x)
    assert "kwargs is a tuple" in refused(verify, model, converted, (x,), (x,))


@pytest.mark.parametrize("call", [a_torch_call, a_jax_call])
def test_call_arguments_in_the_place_of_a_policy_are_told_theirs(call: Any) -> None:
    model, x = call()
    with pytest.raises(PolicyError, match=r"did you mean args=\?") as caught:
        amprewrite.convert(model, cast("Any", (x,)))
    assert len(str(caught.value)) < 300


def test_jax_takes_a_tolerance_with_arguments() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(UnsupportedError, match="tolerance needs args="):
        amprewrite.convert(jax.numpy.sin, tolerance=1e-3, placement="optimal")


def test_a_curve_needs_points_and_something_to_lower() -> None:
    torch = pytest.importorskip("torch")
    model, args = torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)
    with pytest.raises(UnsupportedError, match="points=1: want at least 2"):
        amprewrite.pareto(model, args=args, points=1)
    with pytest.raises(UnsupportedError, match="policy 'off' has no low"):
        amprewrite.pareto(model, "off", args=args)
    with pytest.raises(UnsupportedError, match="tolerance needs args"):
        amprewrite.pareto(model)


def test_what_is_converted_has_no_curve() -> None:
    torch = pytest.importorskip("torch")
    model, args = torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)
    converted = amprewrite.convert(model, args=args)
    with pytest.raises(UnsupportedError, match="give the original"):
        amprewrite.pareto(converted, args=args)
