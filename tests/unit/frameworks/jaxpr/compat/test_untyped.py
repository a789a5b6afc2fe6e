"""The modules of JAX that go by their names without annotations."""

import pytest

jax = pytest.importorskip("jax")

from jax import interpreters, lax

from amprewrite.frameworks.jaxpr.compat import untyped


def test_the_names_are_those_of_jax():
    assert (untyped.jax, untyped.jnp, untyped.lax) == (jax, jax.numpy, lax)
    assert untyped.tree_util is jax.tree_util
    assert untyped.jex is jax.extend.core
    for name in ("ad", "batching", "mlir"):
        assert getattr(untyped, name) is getattr(interpreters, name)
