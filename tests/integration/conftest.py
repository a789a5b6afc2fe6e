"""What integration tests share."""

import pytest


@pytest.fixture
def strict_jax():
    """Let JAX check every program that it makes."""
    import jax

    with jax.enable_checks(True):
        yield
