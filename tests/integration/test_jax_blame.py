"""Blame and fix of JAX functions: restored steps are what a conversion keeps full."""

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("torch")

import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.verify.blame import Effects, Left, limit
from benchmarks import planted_faults

X = jax.random.normal(jax.random.key(0), (8, 16))
W = jax.random.normal(jax.random.key(1), (16, 16)) / 4


def loops(w, x):
    def turn(h, row):
        return jnp.tanh(h @ w + row), h.sum()

    y = jax.checkpoint(lambda y: jnp.tanh(y @ w))(x)
    return lax.scan(turn, jnp.zeros(16), y), (x @ w).T @ x


@pytest.mark.slow  # two functions are compiled op by op
def test_restored_steps_are_the_original_and_fix_is_what_a_conversion_reaches():
    converted = amprewrite.convert(loops, args=(W, X))
    report = amprewrite.verify(loops, converted, (W, X))
    assert report.live is not None
    effects = Effects(report.live, Left(report.error))
    ablation = report.live.ablation
    names = {d.op for d in report.live.ablation.plan.lowered if "scan" in d.path}
    assert names <= ablation.restorable
    left = effects.left(ablation.restorable).error
    assert left == pytest.approx(report.baselines["original"], rel=0.2)
    found = report.fix(report.error * 0.7)
    assert len(found.ops) == 1, "one contraction makes most of the error"
    better = amprewrite.convert(loops, args=(W, X), overrides=found.overrides)
    assert amprewrite.verify(loops, better, (W, X)).error <= 1.1 * found.error
    entry = report.blame(1)[0]
    assert entry.share is not None
    assert entry.share > 0
    assert not entry.fault


@pytest.mark.slow  # the function is compiled op by op, twice
@pytest.mark.parametrize(
    ("change", "op"), [("scale", "dot_general_2"), ("nan", "tanh")]
)
def test_a_planted_fault_is_first(change, op):
    fault = planted_faults.Fault("jax", "mlp", change, 1.03, 0)
    _, found = planted_faults.verified(fault, op)
    assert found[0].op == op
    assert found[0].fault
    assert found.runs <= limit(found.ops)
