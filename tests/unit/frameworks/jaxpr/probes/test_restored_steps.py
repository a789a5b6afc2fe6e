"""Steps that are restored keep their results full, for all that compute in full."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.frameworks.jaxpr.probes.restored_steps import CAST
from amprewrite.measure.runs import Call
from amprewrite.registry import framework_of

X = jax.random.normal(jax.random.key(0), (4, 8))


def chain(x):
    return jax.nn.softmax((x @ x.T).reshape(2, 8) @ X.T)


def test_a_restored_chain_is_the_original_and_moves_follow_it():
    converted = amprewrite.convert(chain, args=(X,))
    found = framework_of(chain).ablation(chain, converted, Call((X,), {}))
    assert not isinstance(found, str)
    low = {d.op for d in found.plan.lowered}
    assert {"dot_general", "reshape", "dot_general_1"} <= low <= found.restorable
    (made,) = found.run({"dot_general", "dot_general_1"}).outputs.values()
    np.testing.assert_allclose(made, chain(X), rtol=1e-6)
    (bare,) = found.run({f"x{CAST}dot_general"}).outputs.values()
    np.testing.assert_array_equal(bare, np.asarray(converted(X), jnp.float64))
    assert set(found.seconds) == {"dot_general", "dot_general_1"}
