"""The public functions: which framework, which options."""

import inspect as signatures
import subprocess
import sys
from typing import Any

import pytest

import amprewrite
from amprewrite.errors import UnsupportedError


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
