"""Exponents of every tensor of a run, in torch and in JAX."""

import math

import numpy as np
import pytest

import amprewrite
from amprewrite.errors import ArgumentError, UnsupportedError

RNG = np.random.default_rng(0)
UP, DOWN = (RNG.integers(-3, 4, shape) / 8 for shape in ((4, 6), (6, 3)))
X, TARGET = (RNG.integers(-4, 5, shape) / 4 for shape in ((5, 4), (5, 3)))
"""Numbers of few bits: both frameworks compute with them exactly."""


def frexp_counts(values):
    """The counts by NumPy alone."""
    _, above = np.frexp(values[values != 0])
    return dict(sorted(zip(*np.unique(above - 1, return_counts=True), strict=True)))


def expected():
    """Every tensor of the network below, by kind, in float64."""
    up = X @ UP
    relu = np.maximum(up, 0)
    down = relu @ DOWN
    error = down - TARGET
    squares = error * error
    by_down = 2 * error / 16
    by_relu = by_down @ DOWN.T
    by_up = by_relu * (up > 0)
    return {
        "weight": [UP, DOWN],
        "activation": [
            *(up, relu, down, error, squares),
            *(squares.sum(), squares.sum() / 16),
        ],
        "weight gradient": [X.T @ by_up, relu.T @ by_down],
        "activation gradient": [
            *(by_up, by_relu, by_down, by_down, np.full((5, 3), 1 / 16)),
            *(np.float64(1 / 16), np.float64(1)),
        ],
    }  # fmt: skip


def in_torch():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (
                torch.nn.Parameter(torch.tensor(w, dtype=torch.float32))
                for w in (UP, DOWN)
            )

        def forward(self, x, target):
            error = torch.relu(x @ self.up) @ self.down - target
            return (error * error).sum() / 16

    tensors = (torch.tensor(a, dtype=torch.float32) for a in (X, TARGET))
    return Model(), tuple(tensors)


def in_jax():
    jax, jnp = pytest.importorskip("jax"), pytest.importorskip("jax.numpy")

    def loss(parameters, x, target):
        error = jax.nn.relu(x @ parameters["up"]) @ parameters["down"] - target
        return (error * error).sum() / 16

    parameters = {
        "down": jnp.asarray(DOWN, "float32"),
        "up": jnp.asarray(UP, "float32"),
    }
    return loss, (parameters, *(jnp.asarray(a, "float32") for a in (X, TARGET)))


@pytest.mark.parametrize("make", [in_torch, in_jax])
def test_counts_of_every_tensor_are_those_of_frexp(make):
    model, args = make()
    found = amprewrite.histogram(model, args)
    for kind, arrays in expected().items():
        rows = found.of(kind)
        if make is in_jax and "weight" in kind:
            rows = rows[::-1]  # JAX sorts the names
        assert [dict(row.counts) for row in rows] == [
            frexp_counts(np.asarray(a)) for a in arrays
        ], kind
        assert [row.zeros for row in rows] == [np.sum(np.equal(a, 0)) for a in arrays]
        assert [row.largest for row in rows] == [np.abs(a).max() for a in arrays]
        assert not any(row.nonfinite for row in rows)
    assert not amprewrite.histogram(model, args, gradients=False).of("weight gradient")


def test_both_frameworks_give_equal_histograms_also_without_a_loss():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    (held, given), (_, (parameters, x, _)) = in_torch(), in_jax()

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held = held

        def forward(self, x):
            return torch.relu(x @ self.held.up) @ self.held.down

    one = amprewrite.histogram(Head(), given[:1]).totals
    other = amprewrite.histogram(
        lambda p, x: jax.nn.relu(x @ p["up"]) @ p["down"], (parameters, x)
    ).totals
    assert [(t.counts, t.zeros) for t in one.values()] == [
        (t.counts, t.zeros) for t in other.values()
    ]
    assert min(t.size for t in one.values()) > 40


def test_what_is_no_model_or_no_call_is_refused():
    with pytest.raises(UnsupportedError, match="cannot convert a str"):
        amprewrite.histogram("model", ())
    with pytest.raises(ArgumentError, match="args is a list; want a tuple"):
        amprewrite.histogram("model", [1])  # pyright: ignore[reportArgumentType]


def test_numbers_that_are_not_finite_are_counted():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.log(x)

    x = torch.tensor([-1.0, 0.0, 1.0, math.e**9])
    found = amprewrite.histogram(Model(), (x,), gradients=False)
    (row,) = found.tensors
    assert (row.zeros, row.nonfinite, row.counts) == (1, 2, {3: 1})
