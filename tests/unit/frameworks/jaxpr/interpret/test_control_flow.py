"""Steps with bodies: settings are kept, and every body is rewritten."""

import numpy as np
import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat.equations import scan_counts

W = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)) / 3, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(5, 8)), jnp.float32)


def equations(function, *args):
    """Return the equations of the converted function by primitive, outermost only."""
    jaxpr = jax.make_jaxpr(amprewrite.convert(function))(*args)
    return {eqn.primitive.name: eqn for eqn in jaxpr.eqns}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_keeps_its_settings(reverse: bool) -> None:  # noqa: FBT001  # a parameter
    def function(xs, h):
        def turn(h, x):
            h = jnp.tanh(h @ W + x)
            return h, h

        return jax.lax.scan(turn, h, xs, reverse=reverse, unroll=2)

    eqn = equations(function, X, X[0])["scan"]
    assert eqn.params["reverse"] is reverse
    assert eqn.params["unroll"] == 2
    assert eqn.params["length"] == 5
    inner = str(eqn.params["jaxpr"])
    assert "bf16[8,8]" in inner
    carry = eqn.params["jaxpr"].in_avals[scan_counts(eqn)[0]]
    assert carry.dtype == jnp.float32


def test_a_checkpoint_keeps_its_policy() -> None:
    policy = jax.checkpoint_policies.dots_saveable
    kept = jax.checkpoint(lambda x: jnp.tanh(x @ W), policy=policy, prevent_cse=False)
    eqn = next(
        e
        for e in jax.make_jaxpr(amprewrite.convert(lambda x: kept(x) * 2))(X).eqns
        if "policy" in e.params
    )
    assert eqn.params["policy"] is policy
    assert eqn.params["prevent_cse"] is False
    assert "bf16" in str(eqn.params["jaxpr"])


def test_branches_agree_on_what_they_give() -> None:
    def function(x, flag):
        return jax.lax.cond(flag, lambda x: x @ W, jnp.exp, x)

    eqn = equations(function, X, True)["cond"]
    first, second = (branch.out_avals for branch in eqn.params["branches"])
    assert [a.dtype for a in first] == [a.dtype for a in second] == [jnp.float32]


def test_a_while_loop_runs_until_its_test_fails() -> None:
    def function(x):
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ W)), (0, x)
        )

    count, found = amprewrite.convert(function)(X)
    _, wanted = function(X)
    assert int(count) == 3
    assert jnp.linalg.norm(found - wanted) < 2e-2 * jnp.linalg.norm(wanted)


def test_a_jit_that_fixes_shardings_is_kept() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    inner = jax.jit(lambda x, y: (x @ W) * y, out_shardings=sharding)
    found = equations(lambda x: inner(x, x) + 1, X)
    assert found["jit"].params["out_shardings"] == (sharding,)
    assert "bf16" in str(found["jit"].params["jaxpr"])
    plain = equations(lambda x: jax.jit(jnp.dot)(x, W) + 1, X)
    assert "jit" not in plain
