"""Which numbers are counted, and when a line is said."""

import enum

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.frameworks.jaxpr.capture.trace import MANY, Varying, numbers


class Mode(enum.IntEnum):
    FAST = 1


def test_numbers_are_named_and_other_leaves_are_none() -> None:
    args = (jnp.ones(3), 2, {"rate": 0.5, "on": True}, np.float32(1), Mode.FAST, "a")
    found = dict(numbers(args, {"z": 1j, "none": None}, ("x", "n", "options")))
    assert found == {"n": 2, "options.rate": 0.5, "z": 1j}


def test_a_line_is_said_once_when_there_are_too_many() -> None:
    varying = Varying()
    lines = [
        line for n in range(3 * MANY) for line in varying.add([("n", n), ("m", n % 4)])
    ]
    assert len(lines) == 1
    assert lines[0].startswith(f"the number n had {MANY + 1} values so far")
    assert "jnp.asarray(n)" in lines[0]
    assert len(varying.values["n"]) == MANY + 1


def test_an_integer_and_a_float_are_two_values() -> None:
    varying = Varying()
    assert not list(varying.add([("n", 1), ("n", 1.0), ("n", 1)]))
    assert len(varying.values["n"]) == 2
