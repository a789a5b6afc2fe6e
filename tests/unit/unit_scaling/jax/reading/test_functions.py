"""Which functions are seen in a program, however they are written."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax

from amprewrite.unit_scaling import rule
from amprewrite.unit_scaling.graph.units import find_units
from amprewrite.unit_scaling.jax.program.insert import insert_scales
from amprewrite.unit_scaling.jax.reading import evaluate, functions
from amprewrite.unit_scaling.jax.reading.evaluate import run
from amprewrite.unit_scaling.jax.reading.functions import (
    find_row_functions,
    with_functions,
)
from amprewrite.unit_scaling.jax.reading.program import Slicer, read_program
from amprewrite.unit_scaling.program import Settings

X = np.ones((4, 8, 24), np.float32)
Y = np.zeros((4, 8), np.int32)
W = np.ones((24, 24), np.float32)
ONE = np.ones(24, np.float32)


def traced(function, *args):
    return jax.make_jaxpr(function)(*args)


def program(function, *args):
    reading = read_program(traced(function, *args), "input_{}".format, {1: "parameter"})
    return with_functions(reading)


def names(function, *args):
    return [f.name for f in program(function, *args).functions.values()]


def layer_norm(x, w):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w


def flax_norm(x, w):
    """As Flax writes it: the gain is multiplied with the statistic."""
    mean, square = x.mean(-1), (x * x).mean(-1)
    gain = lax.rsqrt(square - mean * mean + 1e-6)[..., None] * w
    return (x - mean[..., None]) * gain


def rms_norm(x, w):
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * w


def softmax(x):
    e = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def picked(x):
    return jnp.take_along_axis(jax.nn.log_softmax(x), Y[..., None], -1)[..., 0]


def one_hot(x):
    return (jax.nn.one_hot(Y, 24) * jax.nn.log_softmax(x)).sum(-1)


def subtracted(x):
    return jax.nn.logsumexp(x, -1) - jnp.take_along_axis(x, Y[..., None], -1)[..., 0]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (softmax, "softmax"),
        (jax.nn.softmax, "softmax"),
        (lambda x: jnp.exp(x - jax.nn.logsumexp(x, -1, keepdims=True)), "softmax"),
        (lambda x: jax.nn.softmax(x * 0.125, 1), "softmax"),
        (jax.nn.log_softmax, "log_softmax"),
        (lambda x: jnp.log(softmax(x)), "log_softmax"),
        (picked, "cross_entropy"),
        (one_hot, "cross_entropy"),
        (subtracted, "cross_entropy"),
        (jax.nn.standardize, "layer_norm"),
    ],
)
def test_functions_of_rows_are_known_by_their_values(function, wanted):
    assert names(lambda x, w: function(x @ w), X, W) == [wanted]


@pytest.mark.parametrize("function", [layer_norm, flax_norm, rms_norm])
def test_a_gain_belongs_to_its_norm_or_multiplies_it(function):
    found = program(function, X, ONE)
    (norm,) = found.functions.values()
    assert norm.name == ("rms_norm" if function is rms_norm else "layer_norm")
    assert norm.size == 24
    scaled = insert_scales(
        traced(function, X, ONE), "input_{}".format, {1: "parameter"}, Settings()
    )
    backward = [s.backward for s in scaled.scales if s.cut]
    assert backward == [pytest.approx(32**-0.5)]


def test_a_bias_along_another_axis_is_no_gain():
    def function(x, bias):
        rows = jax.vmap(lambda row: W[:3] @ row + bias)(x)
        found = jax.nn.log_softmax(rows)
        return -jnp.take_along_axis(found, np.zeros((4, 1), np.int32), 1).mean()

    assert names(function, X[:, 0], ONE[:3]) == ["cross_entropy", "mean"]


def test_what_is_used_elsewhere_is_no_function():
    def function(x, w):
        e = jnp.exp(x @ w)
        return e / e.sum(-1, keepdims=True) + e

    assert not names(function, X, W)


def test_means_and_dropout_are_known_by_their_ops():
    key = jax.random.key(0)

    def dropped(x, w):
        mask = jax.random.bernoulli(key, 0.75, x.shape)
        return jnp.where(mask, (x @ w) / 0.75, 0.0).mean()

    found = program(dropped, X, W).functions.values()
    assert {f.name: (f.share, f.size) for f in found} == {
        "dropout": (0.75, 0),
        "mean": (1.0, X.size),
    }


def exact_gelu(x):
    return 0.5 * x * (1 + lax.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jax.nn.gelu, "gelu_tanh"),
        (lambda x: jax.nn.gelu(x, approximate=False), "gelu"),
        (exact_gelu, "gelu"),
        (jax.nn.relu, "relu"),
        (lambda x: jnp.where(x > 0, x, 0), "relu"),
        (lambda x: jnp.maximum(x, 0), "relu"),
        (jax.nn.relu6, "relu6"),
        (jax.nn.silu, "silu"),
        (lambda x: x / (1 + jnp.exp(-x)), "silu"),
        (jax.nn.sigmoid, "sigmoid"),
        (jax.nn.elu, "elu"),
        (jax.nn.leaky_relu, "leaky_relu"),
        (jax.nn.softplus, "softplus"),
        (jnp.tanh, "tanh"),
    ],
)
def test_a_function_of_numbers_has_the_rule_of_its_name(function, name):
    scaled = insert_scales(
        traced(lambda x, w: function(x @ w), X, W),
        "input_{}".format,
        {},
        Settings(None),
    )
    (forward,) = [s.forward for s in scaled.scales if s.index is None and s.why == name]
    (backward,) = [s.backward for s in scaled.scales if s.index == -1]
    assert (forward, backward) == pytest.approx(rule(name), rel=1e-6)


def test_a_function_without_a_name_is_integrated():
    closed = traced(lambda x, w: jnp.sin(3 * (x @ w)) ** 3, X, W)
    scaled = insert_scales(closed, "input_{}".format, {}, Settings())
    assert "quadrature" in scaled.scales.rules.values()


def test_one_region_has_one_root():
    found = program(lambda x, w: jax.nn.gelu(x @ w) @ w, X, W)
    units = find_units(found.live, found.elementwise)
    assert [unit.is_region for unit in units] == [False, True, False]


@pytest.mark.parametrize("name", ["erf", "rsqrt", "integer_pow", "select_n", "iota"])
def test_primitives_on_numpy_are_those_of_jax(name):
    x = np.linspace(0.1, 2, 6, dtype=np.float32)
    operands, params = {
        "erf": ([x], {}),
        "rsqrt": ([x], {}),
        "integer_pow": ([x], {"y": -3}),
        "select_n": ([x > 1, x, -x], {}),
        "iota": ([], {"dtype": np.dtype("int32"), "shape": (2, 3), "dimension": 1}),
    }[name]
    more = {"accuracy": None} if name in ("erf", "rsqrt") else {}
    if name == "erf":
        more = {}
    if name == "iota":
        more = {"sharding": None}
    primitive = getattr(lax, f"{name}_p")
    wanted = primitive.bind(*operands, **params, **more)
    found = run(name, operands, params)
    assert found is not None
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_an_unknown_primitive_is_left_to_jax():
    assert run("sort", [ONE], {}) is None


def test_values_are_computed_from_those_that_are_given():
    reading = read_program(traced(jax.nn.softmax, X), "input_{}".format, {})
    given = {"input_0": np.zeros((1, 1, 24), np.float32)}
    values = evaluate.Evaluator(
        reading, given, np.float32, lambda extent: extent if extent == 24 else 1
    )
    (name,) = reading.graph.outputs
    np.testing.assert_allclose(values.value(name), np.full((1, 1, 24), 1 / 24))


def test_slices_end_at_what_is_no_plain_op():
    reading = read_program(traced(lambda x, w: jnp.tanh(x @ w) * 2, X, W), str, {})
    found = with_functions(reading).slicer
    assert isinstance(found, Slicer)
    (last,) = [op for op in reading.graph.ops if op.canonical == "mul"]
    roots = [part.root for part in found.ending_at(last)]
    assert roots == ["tanh", "dot_general"]
    assert find_row_functions(found) == []


def test_elementwise_functions_are_told_from_those_of_rows():
    found = program(lambda x, w: jax.nn.relu(x @ w).mean(), X, W)
    assert isinstance(found, functions.Functional)
    assert len(found.elementwise) == 1
    assert {f.name for f in found.functions.values()} == {"function", "mean"}
