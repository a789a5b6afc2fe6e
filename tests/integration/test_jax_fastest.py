"""Placement ``fastest`` of JAX functions: timed compiled, and remembered."""

from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.frameworks.jaxpr.probes import tolerance
from tests.jax_programs import normal, relative_error, weight

W, V, X = weight(32, 64), weight(64, 8, 1), normal(16, 32)

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tolerance, "SECONDS", 0.02)


def network(w, v, x):
    return jnp.tanh(x @ w) @ v


def test_a_timed_plan_runs_and_keeps_the_tolerance():
    args = (W, V, X)
    converted = amprewrite.convert(
        network, args=args, placement="fastest", tolerance=1e-2
    )
    assert "full" in {one.name for one in converted.plan.timed}
    assert relative_error(jax.jit(converted)(*args), network(*args)) < 1e-2
    again = amprewrite.inspect(network, args=args, placement="fastest", tolerance=1e-2)
    assert again.timed == converted.plan.timed


def test_other_extents_follow_the_plan_that_was_timed(monkeypatch: Any):
    def raced(runs: Any, wait: Any, _: float) -> dict[str, float]:
        for run in runs.values():
            wait(run())
        return {name: 1.0 + (name == "full") for name in runs}

    monkeypatch.setattr(tolerance, "raced", raced)
    converted = amprewrite.convert(network, args=(W, V, X), placement="fastest")
    assert converted.plan.lowered
    with pytest.warns(amprewrite.errors.AmpWarning, match="follows the plan that was"):
        made = jax.jit(converted)(W, V, X[:4])
    assert relative_error(made, network(W, V, X[:4])) < 2e-2
    first, second = converted.plans
    assert [d.precision for d in first.decisions] == [
        d.precision for d in second.decisions
    ]
