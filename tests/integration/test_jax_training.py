"""Training in float16 and bfloat16: it trains, skips whole steps, saves memory."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import amprewrite
from amprewrite.training.jax import (
    DynamicLossScale,
    StaticLossScale,
    filter_value_and_grad,
    optimizer_update,
    select_tree,
    value_and_grad,
)
from benchmarks import jax_zoo
from benchmarks.jax_accuracy import saved_bytes
from tests.jax_programs import normal, relative_error, weight

X, Y = normal(64, 8), jnp.tanh(normal(64, 1, seed=3))


def parameters():
    return {"b": jnp.zeros(16), "v": weight(16, 1, 2), "w": weight(8, 16)}


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - y) ** 2)


def bits(*trees):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


def trained(policy, state, steps=150, size=2.0**-12):
    """The loss that SGD reaches where gradients are ``size`` times as large."""
    optimizer = optax.sgd(0.1 / size)

    @jax.jit
    def step(params, held, state):
        _, state, finite, grads = value_and_grad(
            lambda p: loss(p, X, Y) * size**2, policy, loss_scale=state
        )(params)
        grads = jax.tree.map(lambda g: g / size, grads)
        params, held = optimizer_update(params, optimizer, held, grads, finite)
        return params, held, state

    params = parameters()
    held = optimizer.init(params)
    for _ in range(steps):
        params, held, state = step(params, held, state)
    return float(loss(params, X, Y)), state


def test_float16_trains_only_with_a_scale():
    """Gradients of a loss over 4096 squared are below float16's numbers."""
    start = float(loss(parameters(), X, Y))
    full, _ = trained(None, StaticLossScale(1.0))
    plain, _ = trained("fp16", StaticLossScale(1.0))
    scaled, state = trained("fp16", DynamicLossScale(2.0**15, period=20))
    assert full < 0.3 * start
    assert plain > 0.9 * start
    assert abs(scaled - full) < 0.03 * full
    assert state.loss_scale > 2.0**15


@pytest.mark.slow
def test_an_infinite_step_of_equinox_changes_nothing_but_the_scale():
    eqx = pytest.importorskip("equinox")

    class Network(eqx.Module):
        first: Any
        norm: Any
        last: Any

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.first = eqx.nn.Linear(8, 16, key=one)
            self.norm = eqx.nn.BatchNorm(16, "batch", mode="ema")
            self.last = eqx.nn.Linear(16, 1, key=two)

        def __call__(self, x, state):
            x, state = self.norm(self.first(x), state)
            return self.last(jax.nn.relu(x)), state

    def batch_loss(model, state, x, y):
        made, state = jax.vmap(
            model, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )(x, state)
        return jnp.mean((made - y) ** 2), state

    optimizer = optax.adam(1e-2)

    @eqx.filter_jit
    def step(model, state, held, scale, x):
        run = filter_value_and_grad(batch_loss, "fp16", loss_scale=scale, has_aux=True)
        (value, new), scale, finite, grads = run(model, state, x, Y)
        model, held = optimizer_update(model, optimizer, held, grads, finite)
        return model, select_tree(finite, new, state), held, scale, value

    model, state = eqx.nn.make_with_state(Network)(jax.random.key(0))
    held = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    scale = DynamicLossScale(1024.0)
    values = []
    for _ in range(20):
        model, state, held, scale, value = step(model, state, held, scale, X)
        values.append(float(value))
    assert values[-1] < 0.8 * values[0]
    assert scale.counter == 20
    before = bits(model, state, held)
    *after, scale, _ = step(model, state, held, scale, X.at[0].set(jnp.inf))
    assert bits(*after) == before
    assert (scale.loss_scale, scale.counter) == (512, 0)


def linen_state():
    linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x, *, train):
            x = linen.Dense(16)(x)
            x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x)
            return linen.Dense(1)(linen.relu(x))

    class State(train_state.TrainState):
        batch_stats: object
        scale: object

    model = Network()
    variables = model.init(jax.random.key(0), X, train=False)
    return model, State.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adam(1e-2),
        batch_stats=variables["batch_stats"],
        scale=DynamicLossScale(1024.0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["value_and_grad", "DynamicScale", "converted"])
def test_a_train_state_of_flax(way):
    """With our gradients, with flax's own scale, and with a converted model."""
    dynamic_scale = pytest.importorskip("flax.training.dynamic_scale")
    model, state = linen_state()
    if way == "DynamicScale":
        state = state.replace(scale=dynamic_scale.DynamicScale(scale=1024.0))
    if way == "converted":
        low = amprewrite.convert(model, "fp16")
        state = state.replace(apply_fn=low.apply)

    @jax.jit
    def step(state, x):
        def batch_loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            made, updates = state.apply_fn(
                variables, x, train=True, mutable=["batch_stats"]
            )
            return jnp.mean((made - Y) ** 2), updates["batch_stats"]

        if way == "DynamicScale":
            converted = amprewrite.convert(batch_loss, "fp16")
            run = state.scale.value_and_grad(converted, has_aux=True)
            scale, finite, (value, stats), grads = run(state.params)
        else:
            policy = None if way == "converted" else "fp16"
            run = value_and_grad(
                batch_loss, policy, loss_scale=state.scale, has_aux=True
            )
            (value, stats), scale, finite, grads = run(state.params)
        new = state.apply_gradients(grads=grads).replace(batch_stats=stats)
        return select_tree(finite, new, state).replace(scale=scale), value

    values = []
    for _ in range(20):
        state, value = step(state, X)
        values.append(float(value))
    assert values[-1] < 0.8 * values[0]
    assert state.step == 20
    before = bits(state.replace(scale=None))
    after, _ = step(state, X.at[0].set(jnp.inf))
    assert bits(after.replace(scale=None)) == before
    assert bits(after.scale) != bits(state.scale)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("way", ["jit", "shard_map", "unchecked", "pmap"])
def test_one_device_that_is_not_finite_skips_the_step_of_all(way, bad):
    x = X.at[63, 0].set(jnp.inf) if bad else X
    state, params = DynamicLossScale(64.0), parameters()
    axis = None if way == "jit" else "d"

    def step(state, params, x, y):
        run = value_and_grad(loss, "fp16", loss_scale=state, axis_name=axis)
        return run(params, x, y)[1:3]

    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    if way == "jit":
        x = jax.device_put(x, NamedSharding(mesh, P("d")))
        after, finite = jax.jit(step)(state, params, x, Y)
    elif way == "pmap":
        run = jax.pmap(step, "d", in_axes=(None, None, 0, 0))
        after, finite = run(state, params, x.reshape(8, 8, 8), Y.reshape(8, 8, 1))
    else:
        run = jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(P(), P(), P("d"), P("d")),
            out_specs=P(),
            check_vma=way == "shard_map",
        )
        after, finite = jax.jit(run)(state, params, x, Y)
    assert np.all(np.asarray(finite) == (not bad))
    assert np.all(np.asarray(after.loss_scale) == (32 if bad else 64))


@pytest.mark.slow
def test_a_transformer_saves_memory_and_is_more_accurate_than_casting_everything():
    function, (params, *inputs) = jax_zoo.build("transformer", jax_zoo.Size(layers=1))

    def model_loss(params, *inputs):
        return jnp.mean(jnp.square(function(params, *inputs).astype(jnp.float32)))

    low = amprewrite.convert(model_loss, "bf16", args=(params, *inputs))
    kept = saved_bytes(low, (params, *inputs))[0]
    assert kept <= 0.70 * saved_bytes(model_loss, (params, *inputs))[0]

    def error(grads):
        pairs = zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True)
        return np.sqrt(sum(relative_error(a, b) ** 2 for a, b in pairs))

    def cast(tree):
        floats = (jnp.float32, jnp.float64)
        return jax.tree.map(
            lambda x: x.astype(jnp.bfloat16) if x.dtype in floats else x, tree
        )

    wanted = jax.jit(jax.grad(model_loss))(params, *inputs)
    *_, ours = jax.jit(value_and_grad(low, loss_scale=None))(params, *inputs)
    everything = jax.jit(jax.grad(lambda p: model_loss(cast(p), *cast(inputs))))(params)
    assert error(ours) < 0.6 * error(everything)
