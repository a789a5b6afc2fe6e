import numpy as np
import pytest

from amprewrite.dtypes import uniform_draws


def arrays():
    yield np.zeros((40, 50), np.float32)
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    yield torch.zeros(40, 50)
    yield jnp.zeros((40, 50))


def test_draws_are_uniform_and_repeat():
    for x in arrays():
        found = np.asarray(uniform_draws(x, 5))
        assert found.shape == (40, 50)
        assert found.dtype == np.float32
        assert 0 <= found.min() < 0.01
        assert 0.99 < found.max() < 1
        assert abs(found.mean() - 0.5) < 5 / 12**0.5 / 2000**0.5
        assert (found == np.asarray(uniform_draws(x, 5))).all()
        assert (found != np.asarray(uniform_draws(x, 6))).any()


def test_a_key_of_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.zeros(3)
    assert (uniform_draws(x, jax.random.key(2)) == uniform_draws(x, 2)).all()
