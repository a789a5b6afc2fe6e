"""Scales of the arrays of a JAX function."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import functional_jax, track_scales

RNG = np.random.default_rng(0)
WEIGHT, X = (
    RNG.standard_normal(shape, dtype=np.float32) for shape in ((256, 128), (512, 128))
)


def model(parameters, x):
    y = functional_jax.linear(x, parameters["weight"], None, None)
    return jax.nn.relu(y), jnp.argmax(y)


def test_values_and_gradients_have_their_scales():
    found: Any = track_scales(model, ({"weight": WEIGHT}, X))
    (relu,) = (row for row in found.rows if row.name == "relu")
    assert (relu.forward.rms, relu.forward.zeros) == pytest.approx(
        (0.707, 0.5), abs=0.02
    )
    assert relu.backward.rms == pytest.approx(1, abs=0.02)
    assert relu.where.startswith("test_tracking.py:")
    product = found["dot_general"]
    assert product.shape == (512, 256)
    assert product.forward.std == pytest.approx(128**0.5, rel=0.02)
    assert product.backward.zeros == pytest.approx(0.5, abs=0.02)
    assert found.rows[0].name == "weight"
    # Half of the output's gradient reaches a weight of unit scale.
    assert found["weight"].backward.rms == pytest.approx(0.707, abs=0.02)
    scales = [x.forward.std for x in found.rows if x.name.startswith("amprewrite")]
    assert scales == pytest.approx([1.0] * 3, abs=0.02)


def test_a_scaled_function_is_tracked_beside_the_plain_one():
    def plain(parameters, x):
        return jax.nn.relu(x @ parameters["weight"].T)

    def scaled(parameters, x):
        return jax.nn.relu(functional_jax.linear(x, parameters["weight"], None, None))

    parameters = {"weight": WEIGHT}
    before, after = (track_scales(f, (parameters, X)) for f in (plain, scaled))
    table: Any = before.beside(after)
    assert [row.name for row in table.rows[:1]] == ["weight"]
    old, new = table["dot_general"].scales("forward")
    assert old.std == pytest.approx(128**0.5, rel=0.02)
    assert new.std == pytest.approx(1, rel=0.02)
    assert not [row for row in table.rows if row.name.startswith("amprewrite")]
