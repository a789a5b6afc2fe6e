"""The names of mpx: what it says it does, by conversion, and without its defects."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.compat import mpx
from tests.jax_programs import (
    checked_jaxpr,
    normal,
    relative_error,
    weight,
)

X, Y = normal(16, 8), normal(16, 4, seed=1)
MODEL = {"w": weight(8, 16), "v": weight(16, 4, 2), "act": jnp.tanh, "rate": 0.5}
TREE = {
    "f": jnp.ones(2),
    "h": jnp.ones(2, jnp.bfloat16),
    "i": jnp.arange(2),
    "k": jax.random.key(0),
    "n": None,
    "s": 1.5,
}


@pytest.fixture(autouse=True)
def the_dtype_is_set_back():
    yield
    mpx.set_half_precision_datatype("float16")


def scaling(scale=1024.0, **fields):
    return mpx.DynamicLossScaling(
        jnp.float32(scale), min_loss_scaling=jnp.ones((), jnp.float32), **fields
    )


def loss(model, x, y):
    return jnp.mean((model["act"](x @ model["w"]) @ model["v"] - y) ** 2)


def loss_and_size(model, x, y):
    return loss(model, x, y), x.dtype.itemsize


def wanted():
    params = {"w": MODEL["w"], "v": MODEL["v"]}
    return jax.value_and_grad(lambda p: loss({**MODEL, **p}, X, Y))(params)


def dtypes(tree):
    return {n: str(getattr(leaf, "dtype", None)) for n, leaf in tree.items()}


def test_casts():
    for cast, name in (
        (mpx.cast_to_float32, "float32"),
        (mpx.cast_to_float16, "float16"),
        (mpx.cast_to_bfloat16, "bfloat16"),
        (mpx.cast_to_full_precision, "float32"),
        (mpx.cast_to_half_precision, "float16"),
        (lambda tree: mpx.cast_tree(tree, jnp.bfloat16), "bfloat16"),
    ):
        found = dtypes(cast(TREE))
        assert found["f"] == found["h"] == name
        assert {n: found[n] for n in "ikns"} == {n: dtypes(TREE)[n] for n in "ikns"}


@pytest.mark.parametrize("given", ["bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16)])
def test_the_dtype_can_be_set_by_name_too(given):
    mpx.set_half_precision_datatype(given)
    assert mpx.half_precision_datatype() == jnp.bfloat16
    assert jnp.bfloat16 == mpx.HALF_PRECISION_DATATYPE
    assert dtypes(mpx.cast_to_half_precision(TREE))["f"] == "bfloat16"


def test_mistakes():
    with pytest.raises(ValueError, match="half precision is 'float8'; want float16"):
        mpx.set_half_precision_datatype("float8")
    for other in (jnp.float32, None, object()):
        with pytest.raises(TypeError, match="want float16 or bfloat16"):
            mpx.set_half_precision_datatype(other)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mpx.nothing
    with pytest.raises(ValueError, match=r"loss_scaling has shape \(2,\)"):
        mpx.DynamicLossScaling(jnp.ones(2), jnp.ones(()))


def test_constants():
    assert mpx.FLOAT16_MAX == 65504
    assert float(jnp.finfo(jnp.bfloat16).max) == mpx.BFLOAT16_MAX


def test_functions_are_cast_whatever_they_give():
    def parts(x, *, y):
        return {"x": x, "list": [y, 3]}, x.dtype

    run = mpx.cast_function(parts, jnp.float16, jnp.bfloat16)
    tree, inside = run(jnp.ones(2), y=jnp.ones(2))
    assert inside == jnp.float16
    assert tree["x"].dtype == tree["list"][0].dtype == jnp.bfloat16
    assert run.__name__ == "parts"


def test_full_precision_gives_back_what_is_set():
    run = mpx.force_full_precision(lambda x: (x, x.dtype))
    assert run(jnp.ones(2, jnp.float16))[0].dtype == jnp.float16
    mpx.set_half_precision_datatype(jnp.bfloat16)
    result, inside = run(jnp.ones(2, jnp.bfloat16))
    assert (result.dtype, inside) == (jnp.bfloat16, jnp.float32)


def test_full_precision_holds_in_a_converted_function():
    @mpx.force_full_precision
    def full(x, w):
        return x @ w

    def both(w, x):
        return (full(x, w).astype(jnp.float32) * jnp.tanh(x @ w)).sum()

    plan = amprewrite.inspect(both, "fp16", args=(MODEL["w"], X))
    products = [d.precision for d in plan.decisions if d.native == "dot_general"]
    assert sorted(products) == ["float16", "float32"]


def test_the_scale_moves():
    state = scaling(period=2)
    for want in (1024, 2048, 2048, 4096):
        state = state.adjust(jnp.bool_(True))
        assert state.loss_scaling == want
    assert state.adjust(jnp.bool_(False)).loss_scaling == 2048
    assert scaling(1.0).adjust(jnp.bool_(False)).loss_scaling == 1
    assert scaling(40000.0, period=1).adjust(jnp.bool_(True)).loss_scaling == 65504
    assert scaling(2.0**20).adjust(jnp.bool_(True)).loss_scaling == 65504


def test_the_scale_survives_what_trees_survive():
    state = jax.tree.map(lambda leaf: leaf, scaling(period=5, counter=jnp.int32(3)))
    assert (state.period, state.counter, state.min_loss_scaling) == (5, 3, 1)


def test_scale_and_unscale():
    state = scaling(2.0**17)
    assert state.scale(jnp.float16(3)) == 3 * 2.0**17
    assert state.unscale(jnp.float16(2)).dtype == jnp.float32
    assert mpx.scaled(lambda x: x, state)(jnp.float32(1)) == 2.0**17
    value, aux = mpx.scaled(lambda x: (x, x), state, has_aux=True)(jnp.float32(1))
    assert (value, aux) == (2.0**17, 1)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_gradients(half):
    mpx.set_half_precision_datatype(half)
    value, state, finite, grads = mpx.filter_value_and_grad(loss, scaling())(
        MODEL, X, Y
    )
    bound = 3e-3 if half == "float16" else 3e-2
    assert relative_error(value, wanted()[0]) < bound
    for name in ("v", "w"):
        assert grads[name].dtype == jnp.float32
        assert relative_error(grads[name], wanted()[1][name]) < bound
    assert grads["act"] is grads["rate"] is None
    assert (finite, state.counter) == (True, 1)
    text = str(checked_jaxpr(lambda w: mpx.filter_grad(loss, scaling())(
        {**MODEL, "w": w}, X, Y)[2]["w"], MODEL["w"]))  # fmt: skip
    assert ("bf16[" if half == "bfloat16" else ":f16[") in text


def test_aux_and_what_the_function_sees():
    made, *_ = mpx.filter_value_and_grad(loss_and_size, scaling(), has_aux=True)(
        MODEL, X, Y
    )
    assert made[1] == 4  # arguments are not cast: ops are
    state, finite, _, aux = mpx.filter_grad(loss_and_size, scaling(), has_aux=True)(
        MODEL, X, Y
    )
    assert (state.counter, finite, aux) == (1, True, 4)


def test_at_a_growth_step_gradients_are_exact():
    """mpx 0.1.8 halves them, and the value: it unscales with the next scale."""
    grows = scaling(period=1)
    value, state, _, grads = mpx.filter_value_and_grad(loss, grows)(MODEL, X, Y)
    assert state.loss_scaling == 2048
    assert relative_error(value, wanted()[0]) < 3e-3
    assert relative_error(grads["w"], wanted()[1]["w"]) < 3e-3


def test_scaled_gradients():
    value, grads = mpx.calculate_scaled_grad(loss, scaling())(MODEL, X, Y)
    assert relative_error(value / 1024, wanted()[0]) < 3e-3
    assert relative_error(grads["w"] / 1024, wanted()[1]["w"]) < 3e-3
    (value, aux), _ = mpx.calculate_scaled_grad(loss_and_size, scaling(), True)(
        MODEL, X, Y
    )
    assert aux == 4
    assert relative_error(value / 1024, wanted()[0]) < 3e-3


def test_without_mixed_precision():
    given = scaling()
    value, state, finite, grads = mpx.filter_value_and_grad(
        loss, given, use_mixed_precision=False
    )(MODEL, X, Y)
    assert state is given
    assert value == loss(MODEL, X, Y)
    assert relative_error(grads["w"], wanted()[1]["w"]) < 1e-6
    assert finite
    state, finite, _ = mpx.filter_grad(loss, given, use_mixed_precision=False)(
        MODEL, X * jnp.inf, Y
    )
    assert (state is given, bool(finite)) == (True, False)


def test_an_infinite_step_is_skipped():
    optax = pytest.importorskip("optax")
    params = {"w": MODEL["w"], "v": MODEL["v"]}
    optimizer = optax.adam(1e-2)
    held = optimizer.init(params)
    state, finite, grads = mpx.filter_grad(
        lambda p, x, y: loss({**MODEL, **p}, x, y), scaling()
    )(params, X.at[0].set(jnp.inf), Y)
    assert (state.loss_scaling, finite) == (512, False)
    after = mpx.optimizer_update(params, optimizer, held, grads, finite)
    pairs = zip(jax.tree.leaves(after), jax.tree.leaves((params, held)), strict=True)
    assert all(jnp.array_equal(a, b) for a, b in pairs)
