"""Scaled gradients of JAX functions and modules are valid, or are told not to be."""

import math
from typing import Any

import numpy as np
import pytest

from amprewrite.errors import ArgumentError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling import functional_jax as F  # noqa: N812  # as in models

RNG = np.random.default_rng(0)
SHAPES = {"first": (16, 16), "up": (32, 16), "down": (16, 32), "unused": (3,)}
PARAMETERS = {n: RNG.standard_normal(s, dtype=np.float32) for n, s in SHAPES.items()}
X = RNG.standard_normal((8, 16), dtype=np.float32)


def network(constraint):
    """A function with a residual branch in a scan; ``constraint`` is its ops'."""

    @jax.jit
    def branch(z, up, down):
        z = F.gelu(F.linear(z, up, None, constraint), 1.0, constraint)
        return F.linear(z, down, None, constraint)

    def function(parameters, x):
        up, down = parameters["up"], parameters["down"]

        def step(x, _):
            return F.residual_apply(lambda z: branch(z, up, down), x, 0.5), None

        x = F.linear(x, parameters["first"])
        return jax.lax.scan(step, x, None, 2)[0]

    return function


def test_gradients_under_constraints_are_valid():
    found = check_gradient_validity(
        jax.jit(network("to_output_scale")), (PARAMETERS, X)
    )
    assert math.isnan(found.pop("unused"))
    assert min(found.values()) > 0.9999
    assert set(found) == {"first", "up", "down"}


def test_without_constraints_they_are_not():
    """Also where ``jit`` has the other gradient in its cache."""
    function = jax.jit(network(None))
    jax.vjp(function, PARAMETERS, X)
    found = check_gradient_validity(function, (PARAMETERS, X))
    assert found["first"] < 0.999


def test_gradients_come_from_the_loss_beside_other_outputs():
    def function(parameters, x):
        y = network(None)(parameters, x)
        return (parameters["up"] ** 2).mean(), y

    found = check_gradient_validity(function, (PARAMETERS, X))
    assert found.pop("up") == pytest.approx(1)
    assert all(map(math.isnan, found.values()))


def test_leaves_of_a_module_are_parameters():
    equinox = pytest.importorskip("equinox")

    class Module(equinox.Module):
        weight: Any

        def __call__(self, x):
            return F.linear(x, self.weight)

    found = check_gradient_validity(Module(jnp.asarray(PARAMETERS["up"])), (X,))
    assert found == {"weight": pytest.approx(1)}


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (network(None), (), "args is empty"),
        (lambda _: 3, (PARAMETERS,), "no float array"),
        (lambda p: p, (jnp.arange(3),), "no float parameter|no float array"),
    ],
)
def test_mistakes_are_told(function, args, message):
    with pytest.raises(ArgumentError, match=message):
        check_gradient_validity(function, args)
