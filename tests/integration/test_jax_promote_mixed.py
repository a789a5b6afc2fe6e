"""Under the policy ``promote`` a model of mixed dtypes runs, below jax.numpy too."""

import threading

import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
eqx = pytest.importorskip("equinox")

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from jax import lax

import amprewrite
from amprewrite.errors import ComplexTruncationError, PromotionError
from tests.jax_programs import checked_jaxpr

pytestmark = pytest.mark.usefixtures("strict_jax", "x64")

KEY = jax.random.key(0)
PAIRS = [
    ("float32", "bfloat16", "float32"),
    ("bfloat16", "float16", "float32"),
    ("float32", "int32", "float32"),
    ("float32", "float64", "float64"),
    ("bfloat16", "int32", "bfloat16"),
]
"""Dtypes of the parameters, of the input, and of what a layer makes of them."""


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def stored(tree, dtype):
    def cast(leaf):
        return leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(cast, tree)


def linen(layer, x, params):
    variables = stored(layer.init(KEY, x.astype("float32")), params)
    return amprewrite.convert(layer, "promote").apply(variables, x)


X = np.arange(32.0).reshape(2, 4, 4)
LAYERS = {
    "linen.Dense": lambda x, p: linen(nn.Dense(3), x, p),
    "linen.Conv": lambda x, p: linen(nn.Conv(3, (3,)), x, p),
    "linen.LayerNorm": lambda x, p: linen(nn.LayerNorm(), x, p),
    "linen.attention": lambda x, p: linen(nn.MultiHeadDotProductAttention(2), x, p),
    "nnx.Linear": lambda x, p: amprewrite.convert(
        nnx.Linear(4, 3, param_dtype=p, rngs=nnx.Rngs(0)), "promote"
    )(x),
    "nnx.attention": lambda x, p: amprewrite.convert(
        nnx.MultiHeadAttention(2, 4, param_dtype=p, decode=False, rngs=nnx.Rngs(0)),
        "promote",
    )(x),
    "eqx.Linear": lambda x, p: amprewrite.convert(
        stored(eqx.nn.Linear(4, 3, key=KEY), p), "promote"
    )(x[0, 0]),
    "eqx.Conv": lambda x, p: amprewrite.convert(
        stored(eqx.nn.Conv1d(4, 3, 3, key=KEY), p), "promote"
    )(x[0]),
    "eqx.GRUCell": lambda x, p: amprewrite.convert(
        stored(eqx.nn.GRUCell(4, 4, key=KEY), p), "promote"
    )(x[0, 0], x[0, 1]),
    "eqx.attention": lambda x, p: amprewrite.convert(
        stored(eqx.nn.MultiheadAttention(2, 4, key=KEY), p), "promote"
    )(x[0], x[0], x[0]),
}


@pytest.mark.parametrize(("params", "given", "made"), PAIRS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_gives_the_dtype_of_its_input_and_parameters(
    layer, params, given, made
):
    assert layer(jnp.asarray(X / 32, given), params).dtype == made


def test_a_convolution_that_jax_refuses_computes_in_the_common_dtype():
    layer = stored(eqx.nn.Conv1d(4, 3, 3, key=KEY), "bfloat16")
    x = jnp.asarray(X[0], "float16")
    with pytest.raises(TypeError, match="same dtypes"):
        layer(x)
    converted = amprewrite.convert(layer, "promote", args=(x,))
    expected = stored(layer, "float64")(x.astype("float64"))
    error = jnp.abs(converted(x) - expected).max() / jnp.abs(expected).max()
    assert error < 1e-6
    casts = {(c.from_dtype, c.to_dtype, c.why) for c in converted.plan.casts}
    why = "float16 and bfloat16 promote to float32"
    assert casts == {("float16", "float32", why), ("bfloat16", "float32", why)}
    gradient = eqx.filter_grad(lambda model: model(x).sum())(converted)
    assert gradient.weight.dtype == "bfloat16"
    assert eqx.filter_jit(converted)(x).dtype == "float32"
    with pytest.raises(TypeError, match="same dtypes"):  # it is as it was
        layer(x)


A = np.ones(3, "float32")
B = np.asarray([1.5, 2, 3], "float64")
W = np.full((3, 3), 0.5, "float64")


def times(c):
    return (c @ W).astype("float64")


SCATTER = lax.ScatterDimensionNumbers((), (0,), (0,))
PROGRAMS = {
    "op": (lax.add, "float64"),
    "write": (lambda a, b: lax.dynamic_update_slice(a, b[:1], (1,)), "float32"),
    "scatter": (
        lambda a, b: lax.scatter(a, jnp.array([[1]]), b[:1], SCATTER),
        "float32",
    ),
    "choice": (lambda a, b: lax.select(b > 1, b, a), "float64"),
    "dot": (lambda a, b: lax.dot(a.astype("float16"), b.astype("bfloat16")), "float32"),
    "number": (lambda a, _: lax.mul(a.astype("bfloat16"), 2.0), "bfloat16"),
    "vmap": (lambda a, b: jax.vmap(lax.mul, (0, None))(a, b[0]), "float64"),
    "jit": (jax.jit(lax.mul), "float64"),
    "checkpoint": (jax.checkpoint(lax.mul), "float64"),
    "grad": (lambda a, b: jax.grad(lambda a: lax.mul(a, b).sum())(a), "float32"),
    "scan": (lambda a, b: lax.scan(lambda c, _: (times(c), None), a, b)[0], "float32"),
    "while": (lambda a, _: lax.while_loop(lambda c: c[0] < 3, times, a), "float32"),
    "fori": (lambda a, _: lax.fori_loop(0, 3, lambda _, c: times(c), a), "float32"),
    "cond": (lambda a, b: lax.cond(b[0] > 0, lambda x: x * 2, times, a), "float64"),
    "switch": (
        lambda a, _: lax.switch(1, [jnp.sin, times, lambda x: x.astype("float16")], a),
        "float64",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_are_promoted_wherever_they_meet(name):
    program, made = PROGRAMS[name]

    converted = amprewrite.convert(program, "promote", args=(A, B))
    found = converted(A, B)
    assert found.dtype == made
    assert jax.jit(converted)(A, B).dtype == made
    checked_jaxpr(converted, A, B)
    wide = amprewrite.convert(program, "promote")(A.astype("float64"), B)
    assert jnp.abs(found - wide).max() < 1e-2
    if name != "number":  # a number is no value
        assert converted.plan.casts
        assert all(cast.why for cast in converted.plan.casts)


def whys(program, *args):
    plan = amprewrite.convert(program, "promote", args=args).plan
    return {(c.from_dtype, c.to_dtype, c.why) for c in plan.casts}


def test_the_plan_says_why_a_body_casts():
    narrowed = "float64 to float32: a carry of a loop keeps its dtype"
    assert ("float64", "float32", narrowed) in whys(PROGRAMS["scan"][0], A, B)
    widened = "float32 to float64: branches give one dtype"
    assert ("float32", "float64", widened) in whys(PROGRAMS["cond"][0], A, B)


def test_a_number_that_a_loop_starts_with_adapts():
    def program(x):
        return lax.scan(lambda c, x: (c + x, None), 0.0, x)[0]

    x = jnp.ones(3, "bfloat16")
    expected = jnp.asarray(program(x))
    found = jnp.asarray(amprewrite.convert(program, "promote", args=(x,))(x))
    assert found == expected
    assert found.dtype == expected.dtype == "bfloat16"


def test_a_loop_does_not_drop_an_imaginary_part():
    def program(x):
        return lax.scan(lambda c, _: (c * 1j, None), x, jnp.arange(2))[0]

    with pytest.raises(
        ComplexTruncationError, match=r"mixed\.py:\d+: found complex64 for a carry"
    ):
        amprewrite.convert(program, "promote", args=(A,))


def test_a_pair_without_a_common_dtype_names_the_line():
    eighth = jnp.ones(3, "float8_e4m3fn")
    with pytest.raises(PromotionError, match=r"mixed\.py:\d+: add: .*float8_e4m3fn"):
        amprewrite.convert(lax.add, "promote", args=(eighth, A.astype("bfloat16")))


def test_what_jax_refuses_for_other_reasons_it_still_refuses():
    with pytest.raises(TypeError, match="same dtypes"):
        amprewrite.convert(
            lambda a, n: lax.dynamic_update_slice(n, a, (0,)), "promote"
        )(A, jnp.arange(3))
    with pytest.raises(TypeError, match="branch"):
        amprewrite.convert(
            lambda a: lax.cond(a[0] > 0, lambda a: a, lambda a: a[0], a), "promote"
        )(A)
    with pytest.raises(TypeError, match="scan"):
        amprewrite.convert(
            lambda a: lax.scan(lambda c, _: (c[0], None), a, A), "promote"
        )(A)


def test_only_what_is_converted_is_promoted():
    seen = []

    def program(a, b):
        def other():
            try:
                lax.add(np.float32(1), np.float16(1))
            except TypeError as error:
                seen.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return lax.add(a, b)

    amprewrite.convert(program, "promote", args=(A, B))
    assert len(seen) == 1
    with pytest.raises(TypeError, match="same dtypes"):
        jax.jit(lax.add)(A, B)


def test_a_policy_may_lower_and_promote(tmp_path):
    file = tmp_path / "both.toml"
    file.write_text('extends = "bf16"\n[promotion]\nsystem = "jax"\n')

    def program(a, w, b):
        return lax.add(a @ w, b)

    args = (A, W.astype("float32"), B)
    converted = amprewrite.convert(program, file, args=args)
    assert converted(*args).dtype == "float64"
    assert converted.plan.by_op["dot_general"].precision == "bfloat16"
    assert converted.plan.by_op["add"].why == "float32 and float64 promote to float64"


ATTENTION = {
    "linen": nn.MultiHeadDotProductAttention(2),
    "nnx": nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0)),
    "equinox": eqx.nn.MultiheadAttention(2, 4, key=KEY),
}


@pytest.mark.parametrize("library", ATTENTION)
def test_attention_of_complex_numbers_is_refused(library):
    z = jnp.ones((2, 4), "complex64")
    converted = amprewrite.convert(ATTENTION[library], "promote")
    args = (z, z, z)
    if library == "linen":
        args = (ATTENTION[library].init(KEY, z.real), z)
    run = converted.apply if library == "linen" else converted
    with pytest.raises((PromotionError, ComplexTruncationError), match="complex"):
        run(*args)


LOGITS = {
    "linen": nn.Dense(4),
    "nnx": nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
    "equinox": eqx.nn.Linear(4, 4, key=KEY),
}


@pytest.mark.parametrize("library", LOGITS)
def test_softmax_of_complex_logits_is_refused(library):
    z = jnp.ones(4, "complex64")
    head = LOGITS[library]
    run = head
    if library == "linen":
        run = head.bind(head.init(KEY, z.real))
    with pytest.raises(PromotionError, match="found an operand of complex64"):
        amprewrite.convert(lambda z: jax.nn.softmax(run(z)), "promote", args=(z,))


@jax.custom_vjp
def ruled(x):
    return x * 2


ruled.defvjp(
    lambda x: (x * 2, None),
    lambda _, g: (lax.mul(g, np.full(3, 3.0)).astype(g.dtype),),
)


def test_the_derivative_rule_of_a_user_is_promoted_too():
    def program(a, b):
        return lax.add(ruled(a), b).sum()

    found = jax.grad(amprewrite.convert(program, "promote"))(A, B)
    assert found.dtype == "float32"
    assert (found == 3).all()
