"""Every scaled op of JAX gives what that of torch gives, and so do its gradients."""

from typing import Any

import numpy as np
import pytest

from tests.unit_scaling_cases import cases

jax = pytest.importorskip("jax")
pytest.importorskip("torch")

import torch

from amprewrite.unit_scaling import functional, functional_jax

CASES = [(case, case.mults()[-1]) for case in cases(64)]


def uneven(shape):
    """A gradient of the output, which no sum over a row cancels."""
    count = np.arange(np.prod(shape, dtype=int), dtype=np.float32)
    return np.cos(1.7 * count).reshape(shape)


def in_torch(case, mult, made):
    """Value and gradients."""
    tensors = [torch.from_numpy(x) for x in made]
    inputs: list[Any] = [x.requires_grad_() for x in tensors if x.is_floating_point()]
    y = getattr(functional, case.op)(*tensors, **case.keywords(mult))
    y.backward(torch.from_numpy(uneven(tuple(y.shape))))
    return y.detach().numpy(), [x.grad.numpy() for x in inputs]


def in_jax(case, mult, made):
    floats = [i for i, x in enumerate(made) if x.dtype == np.float32]

    def function(*inputs):
        whole = iter(inputs)
        every = [next(whole) if i in floats else x for i, x in enumerate(made)]
        return getattr(functional_jax, case.op)(*every, **case.keywords(mult))

    y, back = jax.vjp(function, *(made[i] for i in floats))
    return y, *back(uneven(y.shape))


@pytest.fixture(scope="module")
def of_jax():
    """Value and gradients of every case, by its number: one program, compiled once."""

    @jax.jit
    def program():
        return [in_jax(case, mult, case.arguments()) for case, mult in CASES]

    return [[np.asarray(x) for x in found] for found in program()]


def test_both_have_the_same_ops():
    assert functional.__all__ == functional_jax.__all__


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c, _ in CASES])
def test_torch_and_jax_agree(number, of_jax):
    case, mult = CASES[number]
    value, gradients = in_torch(case, mult, case.arguments())
    for x, y in zip(of_jax[number], [value, *gradients], strict=True):
        size = float(np.abs(y).max())
        assert x == pytest.approx(y, rel=1e-5, abs=1e-5 * size)
