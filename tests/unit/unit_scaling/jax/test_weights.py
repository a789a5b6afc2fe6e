"""Weights of unit scale, for parameters that are arguments."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp

from amprewrite.unit_scaling.jax.weights import unit_init


def test_weights_are_initialised_by_a_function_of_their_own():
    held = {
        "w": 5 * jax.random.normal(jax.random.key(0), (64, 64)),
        "bias": jnp.ones(4),
        "g": jnp.ones(4),
        "n": 3,
    }
    found = unit_init({**held, "flat": jnp.zeros((64, 64))})
    assert float(found["w"].std()) == pytest.approx(1, rel=1e-5)
    assert not found["bias"].any()
    assert (found["g"] == 1).all()
    assert found["n"] == 3
    assert float(found["flat"].std()) == pytest.approx(1, rel=0.1)


def test_constants_stay_and_biases_of_stacked_layers_are_zero():
    held = {"gain": jnp.full((3, 7), 0.1), "b_up": jnp.ones((3, 7)), "bk": jnp.eye(3)}
    found = unit_init({**held, "none": jnp.zeros((0, 3))})
    assert (found["gain"] == held["gain"]).all()
    assert not found["b_up"].any()
    assert float(found["bk"].std()) == pytest.approx(1, rel=1e-5)
    assert found["none"].shape == (0, 3)


def test_a_matrix_is_no_bias_whatever_its_letter():
    found = unit_init({"b": 3 * jnp.eye(4), "scale_bias": jnp.eye(4)})
    assert float(found["b"].std()) == pytest.approx(1, rel=1e-5)
    assert not found["scale_bias"].any()
