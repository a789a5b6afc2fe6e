"""Most tests compile quickly, and those that ask for XLA's defaults get them."""

import os

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from tests.jax_compiler import EMITTERS, as_by_default


def made():
    """What XLA makes of one pointwise op: a fusion where the emitters are on."""
    return jax.jit(jnp.sin).lower(jnp.ones(8)).compile().as_text()


def level():
    return jax.config.values["jax_disable_most_optimizations"]


@pytest.mark.skipif(
    f"{EMITTERS}=false" not in os.environ["XLA_FLAGS"],
    reason="XLA_FLAGS come from elsewhere",
)
def test_a_module_of_tests_may_compile_as_by_default():
    assert "fusion(" not in made()
    for machine_code in (True, False):
        with as_by_default(machine_code=machine_code):
            assert "fusion(" in made()
            assert level() is not machine_code
    assert level()
    assert "fusion(" not in made()
