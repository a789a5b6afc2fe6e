"""Keras on JAX: ``stateless_call`` converted, and trained by a loop of our own."""

import os
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
os.environ.setdefault("KERAS_BACKEND", "jax")  # read where Keras is imported first
keras = pytest.importorskip("keras")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import amprewrite
from amprewrite.errors import UnsupportedError
from tests.jax_programs import floats, full_contractions, normal

X, LABELS = normal(32, 8), np.arange(32) % 3
STEPS = 10


def build() -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(3),
        ]
    )


def held(variables: Any) -> list[Any]:
    return [variable.value for variable in variables]


def trained(model: Any, call: Any) -> Any:
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @jax.jit
    def step(weights: Any, rest: Any, state: Any) -> Any:
        def loss(weights: Any) -> Any:
            scores, after = call(weights, rest, X, training=True)
            return loss_of(LABELS, scores), after

        (value, after), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, state = optimizer.stateless_apply(state, grads, weights)
        return weights, after, state, value

    weights = held(model.trainable_variables)
    rest, state = held(model.non_trainable_variables), held(optimizer.variables)
    losses = []
    for _ in range(STEPS):
        weights, rest, state, value = step(weights, rest, state)
        losses.append(float(value))
    made = jax.make_jaxpr(step)(weights, rest, state)
    return losses, (weights, rest, state), made


def test_it_trains_by_stateless_call_and_predicts_with_the_weights() -> None:
    model = build()
    converted = amprewrite.convert(model.stateless_call)
    found, (weights, rest, state), program = trained(model, converted)
    expected, *_ = trained(model, model.stateless_call)
    assert found[-1] < 0.7 * found[0]
    assert found != expected
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert {str(x.dtype) for x in floats((weights, rest, state))} == {"float32"}
    assert not full_contractions(program)

    low, _ = converted(weights, rest, X, training=False)
    for variables, values in (
        (model.trainable_variables, weights),
        (model.non_trainable_variables, rest),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    full = model.predict(X, verbose=0)
    assert 0 < np.abs(low - full).max() < 0.02 * np.abs(full).max()


def test_models_layers_and_their_methods_are_refused_with_the_way_out() -> None:
    model = build()
    for found in (model, model.layers[0], model.call, model.predict):
        with pytest.raises(UnsupportedError, match=r"convert\(model.stateless_call\)"):
            amprewrite.convert(found)
