"""Value and gradients: scaled, checked, unscaled with the scale they were made with."""

import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    LossScaleError,
    PolicyError,
    UnsupportedError,
)
from amprewrite.training.jax import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    filter_grad,
    filter_value_and_grad,
    grad,
    value_and_grad,
)
from amprewrite.unit_scaling.jax import scale_bwd
from tests.jax_programs import checked_jaxpr, normal, relative_error, weight

PARAMS = {"b": jnp.zeros(16), "v": weight(16, 4, 2), "w": weight(8, 16)}
X, Y = normal(32, 8), normal(32, 4, seed=3)
SCALE = DynamicLossScale(1024.0)


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - y) ** 2)


def loss_and_count(params, x, y):
    return loss(params, x, y), {"count": jnp.int32(len(x)), "y": y}


def far(found, wanted):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(relative_error(a, b) for a, b in pairs)


@pytest.mark.parametrize("jitted", [False, True])
def test_what_comes_back(jitted):
    run = value_and_grad(loss, "fp16", loss_scale=SCALE)
    value, state, finite, grads = (jax.jit(run) if jitted else run)(PARAMS, X, Y)
    wanted = jax.value_and_grad(loss)(PARAMS, X, Y)
    assert relative_error(value, wanted[0]) < 1e-3
    assert far(grads, wanted[1]) < 3e-3
    assert (finite, finite.dtype, finite.shape) == (True, bool, ())
    assert (state.loss_scale, state.counter) == (1024, 1)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}


def test_it_is_called_as_the_function_is():
    run = value_and_grad(loss, "fp16", loss_scale=SCALE)
    assert run.__name__ == "loss"
    value, *_ = run(PARAMS, y=Y, x=X)
    assert value == run(PARAMS, X, Y)[0]


def test_aux_comes_back_as_it_is():
    run = value_and_grad(loss_and_count, "fp16", loss_scale=SCALE, has_aux=True)
    (value, aux), state, finite, grads = run(PARAMS, X, Y)
    assert aux["count"] == 32
    assert jnp.array_equal(aux["y"], Y)
    short = grad(loss_and_count, "fp16", loss_scale=SCALE, has_aux=True)(PARAMS, X, Y)
    assert len(short) == 4
    assert short[0].loss_scale == state.loss_scale
    assert short[1] == finite
    assert far(short[2], grads) == 0
    assert short[3]["count"] == 32
    assert value.shape == ()


def test_gradients_without_the_value():
    state, finite, grads = grad(loss, "fp16", loss_scale=SCALE)(PARAMS, X, Y)
    assert (state.counter, finite) == (1, True)
    assert set(grads) == set(PARAMS)


def test_arguments_to_differentiate():
    run = value_and_grad(loss, "fp16", loss_scale=SCALE, argnums=(0, 1))
    *_, grads = run(PARAMS, X, Y)
    assert far(grads, jax.grad(loss, (0, 1))(PARAMS, X, Y)) < 5e-3
    *_, alone = value_and_grad(loss, "fp16", loss_scale=SCALE, argnums=1)(PARAMS, X, Y)
    assert alone.shape == X.shape


def test_the_program_is_low():
    run = value_and_grad(loss, "fp16", loss_scale=SCALE)
    text = str(checked_jaxpr(run, PARAMS, X, Y))
    assert "f16[32,8]" in text


def test_small_gradients_survive():
    """A gradient of 1e-9 is zero in float16, and is not with a scale of 2**15."""

    def small(w, x):
        return jnp.sum(jnp.tanh(x @ w) * 1e-9)

    w = weight(8, 4)
    wanted = jax.grad(small)(w, X)
    *_, lost = value_and_grad(small, "fp16", loss_scale=StaticLossScale(1.0))(w, X)
    *_, kept = value_and_grad(small, "fp16", loss_scale=StaticLossScale(2.0**15))(w, X)
    assert not jnp.any(lost)
    assert relative_error(kept, wanted) < 1e-2


def test_at_a_growth_step_the_gradient_is_exact():
    """It is that of a step which does not grow, bit for bit: so is the value."""
    still = DynamicLossScale(1024.0, counter=0, period=2)
    grows = DynamicLossScale(1024.0, counter=1, period=2)
    step = jax.jit(lambda s: value_and_grad(loss, "fp16", loss_scale=s)(PARAMS, X, Y))
    first, second = step(still), step(grows)
    assert (first[1].loss_scale, second[1].loss_scale) == (1024, 2048)
    assert first[0] == second[0]
    assert far(first[3], second[3]) == 0


def test_a_step_that_is_not_finite():
    value, state, finite, _ = jax.jit(
        lambda s, x: value_and_grad(loss, "fp16", loss_scale=s)(PARAMS, x, Y)
    )(DynamicLossScale(1024.0, counter=5), X.at[0].set(jnp.inf))
    assert (state.loss_scale, state.counter, finite) == (512, 0, False)
    assert not jnp.isfinite(value)


def test_an_overflow_of_the_scaled_loss_leaves_the_value():
    value, _, finite, _ = value_and_grad(
        loss, "fp16", loss_scale=DynamicLossScale(2.0**127)
    )(PARAMS, X, Y)
    assert relative_error(value, loss(PARAMS, X, Y)) < 1e-3
    assert not finite


def test_stuck_at_the_minimum_raises_where_it_can():
    bad = X.at[0].set(jnp.nan)
    with pytest.raises(LossScaleError, match="gradient of b is not finite"):
        value_and_grad(loss, "fp16", loss_scale=DynamicLossScale(1.0))(PARAMS, bad, Y)
    value_and_grad(loss, "fp16", loss_scale=DynamicLossScale(2.0))(PARAMS, bad, Y)


def test_stuck_at_the_minimum_is_told_after_jit():
    def only_v(params, x, y):
        safe = jax.lax.stop_gradient(jnp.tanh(x @ params["w"] + params["b"]))
        return jnp.mean((safe @ params["v"] - y) ** 2)

    step = jax.jit(
        lambda s, y: value_and_grad(only_v, "fp16", loss_scale=s)(PARAMS, X, y)
    )
    state = step(DynamicLossScale(1.0), Y * jnp.inf)[1]
    with pytest.raises(LossScaleError, match="gradient of v is not finite"):
        state.check(PARAMS)
    step(state, Y)[1].check(PARAMS)  # it is over after a finite step


def test_parameters_in_low_precision_keep_their_dtype():
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)
        *_, grads = value_and_grad(loss, loss_scale=NoOpLossScale())(low, X, Y)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("bfloat16")}


def test_no_scale_for_bfloat16():
    for state in (None, NoOpLossScale()):
        value, after, finite, _ = value_and_grad(loss, loss_scale=state)(PARAMS, X, Y)
        assert isinstance(after, NoOpLossScale)
        assert finite
        assert relative_error(value, loss(PARAMS, X, Y)) < 1e-2


@pytest.mark.parametrize("make", [value_and_grad, grad, filter_grad])
def test_float16_without_a_scale_is_told(make):
    run = make(loss, "fp16", loss_scale=None)
    with pytest.warns(AmpWarning, match="float16 without a loss scale") as told:
        _ = run(PARAMS, X, Y), run(PARAMS, X, Y)
    assert [w.filename for w in told] == [__file__]
    with pytest.warns(AmpWarning, match="below 6.0e-08 become zero"):
        jax.jit(make(loss, "fp16", loss_scale=NoOpLossScale()))(PARAMS, X, Y)


def test_a_scale_for_bfloat16_is_told_and_works():
    with pytest.warns(AmpWarning, match="not needed: bfloat16") as told:
        run = value_and_grad(loss, loss_scale=SCALE)
    assert len(told) == 1
    assert run(PARAMS, X, Y)[1].counter == 1


def scaled_loss(params, x, y):
    return loss(params, scale_bwd(x, 3.0), y)


def test_a_unit_scaled_function_needs_no_scale():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad(scaled_loss, "fp16", loss_scale=None)(PARAMS, X, Y)


@pytest.mark.parametrize(
    ("policy", "lost"), [("fp16", "float16"), ("unit-fp8", "float8_e5m2")]
)
def test_a_scale_beside_unit_scaling_is_told(policy, lost):
    run = jax.jit(grad(scaled_loss, policy, loss_scale=SCALE))
    with pytest.warns(AmpWarning, match=f"beside unit scaling: .*overflow {lost}"):
        run(PARAMS, X, Y)


@pytest.mark.parametrize(("policy", "told"), [("fp8", 1), ("unit-fp8", 0)])
def test_a_scale_helps_gradients_of_8_bits_that_have_none(policy, told):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", AmpWarning)
        grad(loss, policy, loss_scale=SCALE)(PARAMS, X, Y)
    texts = [str(w.message) for w in found if "loss scale" in str(w.message)]
    assert len(texts) == told
    assert all("not needed" in text for text in texts)


def test_a_converted_function_is_run_as_it_is():
    low = amprewrite.convert(loss, "fp16", args=(PARAMS, X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state, _, grads = grad(low, loss_scale=SCALE)(PARAMS, X, Y)
        again = grad(loss, "fp16", loss_scale=SCALE)(PARAMS, X, Y)
    assert state.counter == 1
    assert far(grads, again[2]) == 0


def test_without_a_policy_nothing_is_converted():
    *_, grads = value_and_grad(loss, None, loss_scale=SCALE)(PARAMS, X, Y)
    assert far(grads, jax.grad(loss)(PARAMS, X, Y)) < 1e-6


def test_options_of_convert():
    run = value_and_grad(
        loss, "fp16", loss_scale=SCALE, overrides=[{"op": "*", "class": "deny"}]
    )
    with pytest.warns(AmpWarning, match="nothing was lowered"):
        *_, grads = run(PARAMS, X, Y)
    assert far(grads, jax.grad(loss)(PARAMS, X, Y)) < 1e-6


def test_mistakes():
    with pytest.raises(UnsupportedError, match="loss_scale is a float; want"):
        value_and_grad(loss, loss_scale=1024.0)
    with pytest.raises(PolicyError, match="unknown policy 'fp61'"):
        value_and_grad(loss, "fp61", loss_scale=SCALE)


def test_only_float_arrays_are_differentiated():
    model = {**PARAMS, "rate": 0.5, "act": jnp.tanh, "count": jnp.int32(3), "no": None}

    def filtered(model, x, *, y):
        return jnp.mean((model["act"](x @ model["w"]) @ model["v"] - y) ** 2), 7

    run = filter_value_and_grad(filtered, "fp16", loss_scale=SCALE, has_aux=True)
    (value, aux), state, finite, grads = run(model, X, y=Y)
    assert (aux, finite, state.counter) == (7, True, 1)
    assert {k for k, v in grads.items() if v is not None} == {"b", "v", "w"}
    wanted = jax.value_and_grad(lambda p: filtered({**model, **p}, X, y=Y)[0])(PARAMS)
    assert relative_error(value, wanted[0]) < 1e-3
    assert far({k: grads[k] for k in PARAMS}, wanted[1]) < 5e-3
    short = filter_grad(filtered, "fp16", loss_scale=SCALE, has_aux=True)(model, X, y=Y)
    assert short[3] == 7


def test_no_parameters():
    state, finite, grads = grad(lambda _, x: (x @ x.T).sum(), "fp16", loss_scale=SCALE)(
        {}, X
    )
    assert (state.counter, finite, grads) == (1, True, {})


def test_a_step_is_compiled_once():
    step = jax.jit(lambda s: value_and_grad(loss, "fp16", loss_scale=s)(PARAMS, X, Y))
    state = DynamicLossScale(1024.0)
    for _ in range(3):
        state = step(state)[1]
    assert step._cache_size() == 1
    assert np.asarray(state.counter) == 3
