"""Functions are run on arrays, eagerly or compiled; gradients have names."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.frameworks.jaxpr.probes.runner import Runner, to_array

X = jnp.arange(6.0).reshape(2, 3)


def both(x, count):
    return {"z": x * 2, "a": x.argmax(-1), "key": jax.random.key(7), "n": count}


@pytest.mark.parametrize("jitted", [False, True])
def test_a_run_has_floats_others_and_dtypes(jitted):
    run = Runner((X, np.int32(3)), ("x", "count")).run(both, jitted=jitted)
    assert list(run.outputs) == ["z"]
    np.testing.assert_array_equal(run.outputs["z"], np.arange(6.0).reshape(2, 3) * 2)
    assert set(run.others) == {"a", "key", "n"}
    assert run.others["key"].dtype == np.uint32
    assert run.dtypes["a"] == "int32"
    assert run.gradients == {}


def test_outputs_keep_their_order():
    run = Runner((X,), ("x",)).run(lambda x: [x] * 11, jitted=True)
    assert list(run.outputs) == [str(i) for i in range(11)]


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_gradients_are_those_of_the_loss_without_its_scale(scale):
    runner = Runner((X, np.int32(3)), ("x", "count"), (0,), scale)
    run = runner.run(both, jitted=False)
    target = np.random.default_rng(3).standard_normal(
        (2, 3)
    )  # JAX sorts keys: z is last
    wanted = 2 * (np.asarray(X) * 2 - target) * 2 / 6
    assert list(run.gradients) == ["x"]
    np.testing.assert_allclose(run.gradients["x"], wanted, rtol=1e-5, atol=1e-7)


def test_without_float_outputs_gradients_are_zero():
    run = Runner((X,), ("x",), (0,)).run(lambda x: x.argmax(), jitted=True)
    np.testing.assert_array_equal(run.gradients["x"], 0)


def test_arrays_are_float64_and_complex_ones_are_pairs():
    assert to_array(jnp.ones(2, jnp.bfloat16)).dtype == np.float64
    np.testing.assert_array_equal(to_array(jnp.array([1 + 2j])), [[1.0, 2.0]])
