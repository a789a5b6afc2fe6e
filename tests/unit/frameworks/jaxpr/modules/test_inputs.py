"""Inputs of a module are named by their path in it."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.modules.states import describe


def test_names_and_kinds() -> None:
    state = {
        "params": {"w": jnp.ones(2), "steps": jnp.arange(2)},
        "stats": {"mean": jnp.ones(2)},
        "rate": 0.5,
    }
    found = describe(
        ("x",),
        lambda path: path[0] == "params",
        (state, jnp.ones(2)),
        {"y": jnp.ones(2)},
    )
    assert found.names == ("params.steps", "params.w", "stats.mean", "x", "y")
    assert found.kinds == {0: "buffer", 1: "parameter", 2: "buffer"}
