"""The steps of a program, at every depth."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import all_steps


def test_all_steps_are_found_outer_ones_first():
    def program(x):
        return lax.cond(x.sum() > 0, lambda x: lax.map(jnp.sin, x), jnp.cos, x)

    found = inline(jax.make_jaxpr(program)(jnp.ones(3)))
    names = [step.primitive for step in all_steps(found.steps)]
    assert names.index("cond") < names.index("scan") < names.index("sin")
    assert "cos" in names
    regions = {step.primitive: step.region for step in all_steps(found.steps)}
    assert regions["cond"] == ""
    assert regions["sin"].startswith("cond.")
    assert regions["sin"].endswith("/scan")
