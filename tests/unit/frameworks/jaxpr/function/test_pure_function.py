"""A function and its call become arrays with names, and a program."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.frameworks.jaxpr.capture.trace import split
from amprewrite.frameworks.jaxpr.function.pure_function import (
    Pure,
    Subject,
    prepared_of,
    subject_of,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs
from amprewrite.measure.runs import Call

P = {"w": jnp.ones((3, 3)), "steps": jnp.arange(2)}
X = jnp.ones((2, 3))


def apply(params, x, scale=2):
    return {"y": (x @ params["w"]) * scale + params["steps"][1]}


def test_names_arrays_and_floats():
    subject = subject_of(apply, Call((P, X), {"scale": 3}))
    assert subject.names == ("params.steps", "params.w", "x")
    assert subject.trained == (1, 2)
    assert float(subject.flat(*subject.arrays)["y"][0, 0]) == 10
    assert subject.program.inputs == ("params.steps", "params.w", "x")


def test_an_adapter_says_what_is_trained_and_what_is_compared():
    call, arrays = split(((P, X), {}))
    inputs = Inputs(("steps", "w", "x"), {0: "buffer", 1: "parameter"})
    pure = Pure(apply, (P, X), {}, inputs, result_of=lambda made: made["y"])
    subject = Subject(pure, call, tuple(arrays))
    assert subject.trained == (1,)
    assert subject.compared == (1, 2)
    assert subject.flat(*arrays).shape == (2, 3)
    assert subject.built([X]) is X


def test_only_a_converted_function_has_a_plan():
    call = Call((P, X), {})
    converted = amprewrite.convert(apply, args=(P, X))
    found = [prepared_of(f, call) for f in (converted, jax.jit(converted))]
    assert found[0] is not None
    assert found[0] is found[1]
    assert prepared_of(apply, call) is None
    assert prepared_of(jax.jit(apply), call) is None
