"""Steps that are applied or skipped as a whole, and gradients of several batches."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

from amprewrite.errors import LossScaleError
from amprewrite.training.jax import (
    DynamicLossScale,
    accumulate,
    optimizer_update,
    value_and_grad,
)
from tests.jax_programs import normal, relative_error, weight

OPTIMIZER = optax.adamw(1e-2)
X, Y = normal(32, 8), normal(32, 4, seed=3)
SCALE = DynamicLossScale(256.0)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def parameters():
    return {"v": weight(16, 4, 2), "w": weight(8, 16)}


def bits(*trees):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


def test_a_finite_step_is_that_of_optax():
    params = parameters()
    state, grads = OPTIMIZER.init(params), jax.grad(loss)(params, X, Y)
    found = optimizer_update(params, OPTIMIZER, state, grads, jnp.bool_(True))
    updates, wanted = OPTIMIZER.update(grads, state, params)
    assert bits(*found) == bits(optax.apply_updates(params, updates), wanted)


@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_a_step_that_is_not_finite_changes_no_bit(value):
    params = parameters()
    state = OPTIMIZER.init(params)
    params["w"] = params["w"].at[0, 0].set(-0.0)
    grads = jax.tree.map(lambda x: jnp.full_like(x, value), params)
    run = jax.jit(lambda p, s, g, flag: optimizer_update(p, OPTIMIZER, s, g, flag))
    assert bits(*run(params, state, grads, jnp.bool_(False))) == bits(params, state)
    assert bits(*run(params, state, grads, jnp.bool_(True))) != bits(params, state)


def test_parameters_keep_their_dtypes():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    sgd = optax.sgd(0.5)
    grads = {"w": jnp.ones(3, jnp.float32)}
    found, _ = optimizer_update(params, sgd, sgd.init(params), grads, True)
    assert (found["w"].dtype, found["w"].tolist()) == (jnp.bfloat16, [0.5] * 3)


def test_leaves_without_a_gradient_stay():
    model = {"w": jnp.ones(3), "act": jnp.tanh, "n": jnp.arange(2)}
    grads = {"w": jnp.ones(3), "act": None, "n": None}
    state = OPTIMIZER.init({"w": model["w"], "act": None, "n": None})
    for finite in (True, False):
        found, _ = optimizer_update(model, OPTIMIZER, state, grads, finite)
        assert found["act"] is jnp.tanh
        assert found["n"].tolist() == [0, 1]
        assert (found["w"][0] < 1) == finite


def batches(count=4):
    return {"x": X.reshape(count, -1, 8), "y": Y.reshape(count, -1, 4)}


def gradients(state, *, has_aux=False):
    def with_aux(params, x, y):
        value = loss(params, x, y)
        return (value, x.sum()) if has_aux else value

    run = value_and_grad(with_aux, "fp16", loss_scale=state, has_aux=has_aux)
    params = parameters()
    return lambda batch: run(params, batch["x"], batch["y"])


def test_accumulated_gradients_are_those_of_the_whole_batch():
    value, state, finite, grads = accumulate(
        gradients(SCALE), batches(), loss_scale=SCALE
    )
    wanted = jax.value_and_grad(loss)(parameters(), X, Y)
    assert relative_error(value, wanted[0]) < 1e-3
    for name, grad in grads.items():
        assert relative_error(grad, wanted[1][name]) < 3e-3
        assert grad.dtype == jnp.float32
    assert (state.counter, state.loss_scale, finite) == (1, 256, True)


def test_accumulated_aux_is_stacked():
    (_, aux), *_ = accumulate(
        gradients(SCALE, has_aux=True), batches(), loss_scale=SCALE
    )
    assert jnp.allclose(aux, batches()["x"].sum((1, 2)), rtol=1e-5)


def test_sums_are_full_precision_though_parameters_are_low():
    """Adding 1 to 256 in bfloat16 gives 256."""

    def constant(batch):
        return batch, SCALE, jnp.bool_(True), {"w": batch.astype(jnp.bfloat16)}

    numbers = jnp.concatenate([jnp.full(1, 256.0), jnp.ones(255)])
    *_, grads = accumulate(constant, numbers, loss_scale=SCALE)
    assert grads["w"].dtype == jnp.bfloat16
    assert grads["w"] == jnp.bfloat16((256 + 255) / 256)


def test_a_batch_that_was_not_finite_elsewhere_skips_all():
    """Another device may have found what is not seen in the gradients of this one."""

    def found(batch):
        return batch.sum(), SCALE, batch[0] < 2, {"w": batch}

    numbers = jnp.arange(4.0)[:, None]
    _, state, finite, _ = accumulate(found, numbers, loss_scale=SCALE)
    assert (state.loss_scale, finite) == (128, False)


def test_one_batch_that_is_not_finite_skips_all():
    bad = batches()
    bad["x"] = bad["x"].at[2, 0, 0].set(jnp.inf)
    step = jax.jit(lambda s: accumulate(gradients(s), bad, loss_scale=s))
    _, state, finite, _ = step(DynamicLossScale(256.0, counter=4))
    assert (state.loss_scale, state.counter, finite) == (128, 0, False)
    with pytest.raises(LossScaleError, match="of w is not finite"):
        step(DynamicLossScale(1.0))[1].check(parameters())
