"""What tests of unit scaling in JAX share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Let XLA compile quickly: programs here are small, and run once."""
    jax = pytest.importorskip("jax")
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)
