"""What integration tests share."""

import pytest


@pytest.fixture
def strict_jax():
    """Let JAX check every program that it makes, and compile quickly."""
    import jax

    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_checks(True):
        yield
    jax.config.update("jax_disable_most_optimizations", before)
