"""Casts that a float32 trace of JAX does not show: islands are kept, others follow."""

from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite

FULL = jnp.float32
KEY = jax.random.key(0)
W = jax.random.normal(KEY, (3, 16, 16)) / 4
X = jax.random.normal(jax.random.key(1), (4, 16))


def norm(x: Any) -> Any:
    wide = x.astype(FULL)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype)


def layers(w: Any, x: Any) -> Any:
    def turn(x: Any, w: Any) -> Any:
        h = x @ w
        gate = (h.astype(FULL) * 1.7 + 0.3).astype(h.dtype)  # an island of cheap ops
        return x + norm(h) @ w + gate @ w, None

    return lax.scan(turn, x, w)[0]


def decided(plan: Any, op: str) -> list[tuple[str, str]]:
    return [(d.op_class, d.precision) for d in plan.decisions if d.canonical == op]


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_islands_are_kept_and_casts_that_follow_follow(policy: str) -> None:
    converted = amprewrite.convert(layers, policy, args=(W, X))
    plan = converted.plan
    low = plan.low
    assert not plan.warnings
    assert sorted(decided(plan, "cast")) == sorted(
        [("keep", "float32"), ("follow", low)] * 2
    )
    gate = [d for d in plan.decisions if d.source.endswith(_line("cheap ops"))]
    cheap = [d for d in gate if d.canonical in ("mul", "add")]
    assert [d.precision for d in cheap] == ["float32"] * 2
    assert {p for _, p in decided(plan, "matmul")} == {low}
    report = amprewrite.verify(layers, converted, (W, X), gradients=low == "bfloat16")
    assert report.error < {"bfloat16": 2e-2, "float16": 3e-3}[low]
    assert all(row.relative_l2 < 4e-2 for row in report.gradients)


def _line(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    return f":{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_without_the_casts_the_same_ops_run_low() -> None:
    def plain(w: Any, x: Any) -> Any:
        h = x @ w[0]
        return (h * 1.7 + 0.3) @ w[1]

    def island(w: Any, x: Any) -> Any:
        h = x @ w[0]
        return (h.astype(FULL) * 1.7 + 0.3).astype(h.dtype) @ w[1]

    plans = [amprewrite.convert(f, args=(W, X)).plan for f in (plain, island)]
    low, full = ("promote", "bfloat16"), ("promote", "float32")
    assert [decided(plan, "mul") for plan in plans] == [[low], [full]]
    assert [decided(plan, "add") for plan in plans] == [[low], [full]]


def test_a_plan_with_such_casts_is_applied_elsewhere(tmp_path: Any) -> None:
    converted = amprewrite.convert(layers, args=(W, X))
    converted.plan.save(tmp_path / "plan.json")
    plan = amprewrite.Plan.load(tmp_path / "plan.json")
    again = amprewrite.convert(layers, args=(W, X), plan=plan)
    assert jnp.array_equal(again(W, X), converted(W, X))


def test_errors_by_op_are_measured_beside_the_casts() -> None:
    converted = amprewrite.convert(layers, args=(W, X))
    report = amprewrite.verify(layers, converted, (W, X))
    assert not report.notes
    assert {row.op for row in report.ops}


def test_a_function_is_traced_once_in_each_precision() -> None:
    seen: list[Any] = []

    def function(x: Any) -> Any:
        seen.append(x.dtype)
        return jax.nn.softmax(x @ W[0])

    amprewrite.convert(function, args=(X,))(X)
    assert seen == [jnp.float32, jnp.bfloat16]
