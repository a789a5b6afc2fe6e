"""NNX models: gradients of parameters, and state that a skipped step leaves alone."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import amprewrite
from amprewrite.training.jax import (
    DynamicLossScale,
    optimizer_update,
    value_and_grad,
)
from amprewrite.training.jax.trees import held_models, pure
from tests.jax_programs import normal, relative_error

X, Y = normal(32, 8), normal(32, 1, seed=1)


class Network(nnx.Module):
    def __init__(self, rngs, rate=0.1):
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def step(model, optimizer, state, x):
    made = value_and_grad(loss, "fp16", loss_scale=state)(model, x, Y)
    value, state, finite, grads = made
    optimizer_update(model, optimizer, None, grads, finite)
    return value, state, finite


def bits(*parts):
    leaves = jax.tree.leaves([nnx.state(part) for part in parts])
    keys = jax.dtypes.prng_key
    return [
        np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, keys) else x
        ).tobytes()
        for x in leaves
    ]


def made(rate=0.1):
    model = Network(nnx.Rngs(0), rate)
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def test_parts_of_arguments():
    model, _ = made()
    models = held_models((1, model, X))
    assert set(models.models) == {1}
    assert models.arguments((1, model, X))[::2] == (1, X)
    assert set(models.held) == {1}
    assert not held_models((X, {"w": X}))


def test_a_pure_function_leaves_the_model():
    model, _ = made(rate=0.0)
    before = bits(model)
    models = held_models((model, X, Y))
    value, state = pure(loss)(models.held, *models.arguments((model, X, Y)))
    assert bits(model) == before
    assert value == loss(model, X, Y)
    models.update(jnp.bool_(True), state)
    assert jnp.array_equal(model.norm.mean[...], state[0]["norm"]["mean"][...])


def test_gradients_are_those_of_nnx():
    (model, _), (other, _) = made(), made()
    run = value_and_grad(loss, "fp16", loss_scale=DynamicLossScale(256.0))
    value, _, _, grads = nnx.jit(run)(model, X, Y)
    wanted = nnx.value_and_grad(loss)(other, X, Y)
    assert relative_error(value, wanted[0]) < 1e-3
    assert jax.tree.structure(grads) == jax.tree.structure(wanted[1])
    pairs = zip(jax.tree.leaves(grads), jax.tree.leaves(wanted[1]), strict=True)
    # The bias before the norm has no gradient but noise.
    assert all(relative_error(a, b) < 2e-2 or np.abs(b).max() < 1e-6 for a, b in pairs)
    assert relative_error(model.norm.mean[...], other.norm.mean[...]) < 2e-3
    assert model.drop.rngs.count[...] == other.drop.rngs.count[...]


def test_training_changes_the_model_and_an_infinite_step_does_not():
    model, optimizer = made()
    jitted = nnx.jit(step)
    state, values = DynamicLossScale(256.0), []
    for _ in range(20):
        value, state, finite = jitted(model, optimizer, state, X)
        values.append(float(value))
        assert finite
    assert values[-1] < 0.8 * values[0]
    assert optimizer.step[...] == 20
    before = bits(model, optimizer)
    _, after, finite = jitted(model, optimizer, state, X.at[0].set(jnp.inf))
    assert not finite
    assert bits(model, optimizer) == before
    assert after.loss_scale == state.loss_scale / 2
    jitted(model, optimizer, after, X)
    assert bits(model, optimizer) != before


def test_a_converted_model_runs_by_its_plan():
    model, optimizer = made()
    low = amprewrite.convert(model, "fp16", args=(X,))
    before = bits(model)
    _, state, finite = nnx.jit(step)(low, optimizer, DynamicLossScale(256.0), X)
    assert (finite, state.counter) == (True, 1)
    assert bits(model) != before  # the converted model shares its state
    assert bits(model) == bits(low)


def test_other_arguments_may_be_models_too():
    def distance(student, teacher, x):
        return jnp.mean((student(x) - jax.lax.stop_gradient(teacher(x))) ** 2)

    (student, _), (teacher, _) = made(), made()
    teacher.last.bias[...] += 1.0
    mean = np.asarray(teacher.norm.mean[...])
    run = value_and_grad(distance, "fp16", loss_scale=DynamicLossScale(256.0))
    *_, finite, grads = nnx.jit(run)(student, teacher, X)
    assert finite
    assert jnp.all(grads["last"]["bias"][...] < 0)
    assert not np.array_equal(teacher.norm.mean[...], mean)
