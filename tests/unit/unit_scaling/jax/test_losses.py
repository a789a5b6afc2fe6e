"""Scaled losses of JAX: plain values, targets that do not count, mistakes."""

import pytest

from amprewrite.errors import ArgumentError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import functional_jax

LOGITS = jax.random.normal(jax.random.key(0), (4, 10))
TARGET = jnp.array([1, 7, 3, 0])


def test_cross_entropy_has_the_plain_value_and_direction():
    def plain(x):
        return -jax.nn.log_softmax(2 * x)[jnp.arange(4), TARGET].mean()

    found = jax.value_and_grad(lambda x: functional_jax.cross_entropy(x, TARGET, 2.0))(
        LOGITS
    )
    value, gradient = jax.value_and_grad(plain)(LOGITS)
    assert jnp.allclose(found[0], value)
    assert jnp.allclose(found[1] / gradient, (found[1] / gradient)[0, 0], rtol=1e-3)


@pytest.mark.parametrize("shape", [(10,), (8, 10, 3)])
def test_classes_are_on_the_second_axis(shape):
    target = jnp.zeros((*shape[:1], *shape[2:]) if len(shape) > 1 else (), int)
    logits = jnp.zeros(shape)
    assert functional_jax.cross_entropy(logits, target) == pytest.approx(jnp.log(10.0))


def test_a_target_may_be_left_out():
    found = functional_jax.cross_entropy(
        LOGITS, jnp.array([1, -1, 3, -1]), ignore_index=-1
    )
    plain = functional_jax.cross_entropy(LOGITS[::2], TARGET[::2])
    assert jnp.allclose(found, plain)


def test_mistakes_are_told():
    with pytest.raises(ArgumentError, match="target of float32; want class indices"):
        functional_jax.cross_entropy(LOGITS, LOGITS)
    with pytest.raises(ArgumentError, match=r"mse_loss of shapes \(4, 10\) and \(4,\)"):
        functional_jax.mse_loss(LOGITS, TARGET)
