"""Arrays of a run of a JAX function: inside jit, loops and checkpoints."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.watching import observe, run

WEIGHT = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (3, 3)) / 4, "float32")
X = jnp.arange(12, dtype="float32").reshape(4, 3) / 8


@jax.jit
def model(parameters, xs):
    def step(carry, x):
        carry = carry @ parameters["w"] + x
        return carry, carry * 2

    last, ys = jax.lax.scan(step, jnp.zeros(3), xs)
    twice = jax.checkpoint(lambda y: jax.nn.relu(y) * 3)
    return twice(ys).sum() + last.sum()


def test_bodies_are_entered_and_loops_are_stacked():
    found = run(model, ({"w": WEIGHT}, X), {})
    shapes = {seen.name: np.shape(seen.value) for seen in found.made}
    assert shapes == {
        "broadcast_in_dim": (3,),
        "dot_general": (4, 3),
        "add": (4, 3),
        "mul": (4, 3),
        "relu": (4, 3),
        "mul_1": (4, 3),
        "reduce_sum": (),
        "reduce_sum_1": (),
        "add_1": (),
    }
    by_name = {seen.name: seen for seen in found.made}
    carry, carries = np.zeros(3), []
    for x in np.asarray(X):
        carry = carry @ np.asarray(WEIGHT) + x
        carries.append(carry)
    assert np.array_equal(by_name["add"].value, carries)
    assert np.array_equal(by_name["mul"].value, 2 * np.array(carries))
    assert by_name["mul"].where.startswith("test_observe.py:")
    assert by_name["mul"].first == "add"


def test_gradients_are_those_of_jax():
    found = run(model, ({"w": WEIGHT}, X), {})
    want = jax.grad(model)({"w": WEIGHT}, X)["w"]
    assert found.names == ["w"]
    assert np.allclose(found.gradients[0], want, rtol=1e-5)
    by_name = {seen.name: seen.gradient for seen in found.made}
    assert np.array_equal(by_name["mul_1"], np.ones((4, 3)))
    # What is added to a carry reaches all iterations behind it.
    moved = jax.grad(lambda x: model({"w": WEIGHT}, x))(X)
    assert np.allclose(by_name["add"], moved, rtol=1e-5)


def test_modules_name_their_parameters():
    eqx, nn = pytest.importorskip("equinox"), pytest.importorskip("flax.linen")
    nnx = pytest.importorskip("flax.nnx")
    linear, dense = eqx.nn.Linear(3, 2, key=jax.random.key(0)), nn.Dense(2)
    held = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    variables = dense.init(jax.random.key(0), X)
    for module, args, names in (
        (linear, (X[0],), ["weight", "bias"]),
        (dense, (variables, X), ["params.bias", "params.kernel"]),
        (held, (X,), ["bias", "kernel"]),
    ):
        found = amprewrite.histogram(module, args)
        assert [row.name for row in found.of("weight gradient")] == names
        assert any(row.name == "dot_general" for row in found.of("activation"))


def test_a_converted_function_shows_what_runs():
    converted = amprewrite.convert(model, args=({"w": WEIGHT}, X))
    plain, low = (
        amprewrite.histogram(f, ({"w": WEIGHT}, X)) for f in (model, converted)
    )
    names = {row.name for row in low.tensors} - {row.name for row in plain.tensors}
    assert names == {"low_contraction"}  # with casts of its own
    assert plain.of("weight") == low.of("weight")


def test_without_gradients_there_are_none():
    found = []
    args = ({"w": WEIGHT}, X)
    observe(model, args, {}, lambda seen: found.append(seen.gradient), gradients=False)
    assert len(found) == 10
    assert not any(found)
    with pytest.raises(ArgumentError, match="args is empty"):
        run(lambda: jnp.ones(3), (), {})
    with pytest.raises(ArgumentError, match="gives no float array"):
        run(jnp.argmax, (X,), {})
