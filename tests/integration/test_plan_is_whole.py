"""The plan is the whole truth of what runs: no label and no cache file decides."""

from collections.abc import Callable
from dataclasses import replace

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.frameworks.jaxpr.probes.calibrate import describe
from amprewrite.plan import Plan
from amprewrite.plan.hardware import save_calibration
from tests.calibrations import calibration
from tests.jax_programs import normal, weight


def outer(x, w):
    """A contraction that sums nothing, with a derivative that sums over rows."""
    return jnp.tanh(jnp.einsum("ik,kj->ij", x, w)).sum()


def layers(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w).sum()


CASES: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
    "outer": (outer, (normal(64, 1), normal(1, 8, seed=1))),
    "layers": (layers, (normal(4, 8), weight(8, 8))),
}


def relabelled(plan: Plan) -> Plan:
    """The plan with other words in every place that is meant for people."""
    return replace(
        plan,
        policy=plan.policy,
        captured="elsewhere",
        prices="free of charge",
        warnings=("a warning",),
        decisions=tuple(
            replace(d, rule=f"r{i}", why=f"w{i}", causes=(), path="p", source="s")
            for i, d in enumerate(plan.decisions)
        ),
        casts=tuple(replace(c, why="w", path="p", source="s") for c in plan.casts),
    )


def jaxprs(converted, args):
    gradient = jax.grad(converted, (0, 1))
    return str(jax.make_jaxpr(converted)(*args)), str(jax.make_jaxpr(gradient)(*args))


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
@pytest.mark.parametrize("name", CASES)
def test_words_for_people_change_no_program(name):
    fun, args = CASES[name]
    plan = amprewrite.inspect(fun, args=args)
    same = amprewrite.convert(fun, args=args, plan=plan)
    other = amprewrite.convert(fun, args=args, plan=relabelled(plan))
    assert jaxprs(other, args) == jaxprs(same, args)
    for a, b in zip(
        jax.grad(same, (0, 1))(*args), jax.grad(other, (0, 1))(*args), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("emits", [True, False])
def test_a_plan_rounds_alike_on_another_machine(name, emits, tmp_path, monkeypatch):
    fun, args = CASES[name]
    plan = amprewrite.inspect(fun, args=args)
    here = jaxprs(amprewrite.convert(fun, args=args, plan=plan), args)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = replace(calibration(), device=describe(), emits_accumulators=emits)
    save_calibration(measured)
    jax.clear_caches()
    again = amprewrite.convert(fun, args=args, plan=plan)
    assert jaxprs(again, args) == here


def test_another_calibration_makes_another_plan(tmp_path, monkeypatch):
    fun, args = CASES["layers"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = []
    for emits in (True, False):
        measured = replace(calibration(), device=describe(), emits_accumulators=emits)
        save_calibration(measured)
        plan = amprewrite.inspect(fun, args=args)
        found.append({d.accumulator for d in plan.decisions if d.accumulator})
    assert found[0] - {"float32"} == set()
    assert "bfloat16" in found[1]


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_the_plan_says_what_its_derivatives_round():
    fun, args = CASES["outer"]
    plan = amprewrite.inspect(fun, args=args)
    (dot,) = (d for d in plan.decisions if d.canonical == "matmul" or d.derivative)
    assert (dot.precision, dot.derivative) == ("float32", "bfloat16")
    said = "1 contraction that runs in float32, differentiated in bfloat16"
    assert said in plan.summary()
    assert "derived  in bfloat16" in plan.explain(dot.op)
    full = replace(
        plan,
        decisions=tuple(
            replace(d, derivative="float32", derivative_accumulator="operand")
            if d is dot
            else d
            for d in plan.decisions
        ),
    )
    converted = amprewrite.convert(fun, args=args, plan=full)
    assert "bf16" not in jaxprs(converted, args)[1]
    assert f"{dot.op}: derivative bfloat16 -> float32" in plan.diff(full)
