"""The primitives find the framework of what they are given."""

import numpy as np
import pytest

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import scale_bwd, scale_fwd


def test_a_tensor_stays_a_tensor():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, requires_grad=True)
    y = scale_bwd(scale_fwd(x, 2.0), 3.0)
    y.sum().backward()
    assert y.tolist() == [2, 2]
    assert x.grad.tolist() == [3, 3]


def test_an_array_stays_an_array():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones(2)
    y, back = jax.vjp(lambda x: scale_bwd(scale_fwd(x, 2.0), 3.0), x)
    assert isinstance(y, jax.Array)
    assert y.tolist() == [2, 2]
    assert back(x)[0].tolist() == [3, 3]
    assert scale_fwd(np.ones(2, np.float32), 2.0).tolist() == [2, 2]


def test_anything_else_is_refused():
    with pytest.raises(
        ArgumentError, match=r"cannot scale a list; want a torch\.Tensor"
    ):
        scale_fwd([1.0], 2.0)
