"""Tracing: arrays are inputs, the rest is the program; a signature is traced once."""

from functools import partial

import numpy as np
import pytest

from amprewrite.errors import CaptureError, UnsupportedError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.capture.trace import (
    Tracer,
    check_values,
    input_names,
    is_array,
    split,
)

X = np.ones((2, 3), np.float32)


def test_a_tree_is_split_and_put_together_again() -> None:
    tree = ((X, "word", None, 2.0), {"a": [X, 1], "b": jnp.ones(2)})
    call, arrays = split(tree)
    assert len(arrays) == 3
    args, kwargs = call.arguments(arrays)
    assert args[1:] == ("word", None, 2.0)
    assert kwargs["a"][1] == 1
    assert args[0] is X


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), ("a", "b")])
def test_programs_of_other_values_differ(one: object, other: object) -> None:
    assert split((one,))[0] != split((other,))[0]
    assert split((one,))[0] == split((one,))[0]


def test_a_signature_is_traced_once() -> None:
    calls: list[int] = []

    def function(x, scale):
        calls.append(1)
        return x * scale

    tracer = Tracer(function)
    first = tracer.trace((X, 2.0), {})
    assert tracer.trace((X + 1, 2.0), {}).closed.jaxpr is first.closed.jaxpr
    assert len(calls) == 1
    tracer.trace((X, 3.0), {})
    tracer.trace((X[:1], 3.0), {})
    assert len(calls) == 3


def test_outputs_that_are_no_arrays_pass_by() -> None:
    traced = Tracer(
        lambda x: {"y": x + 1, "name": "model", "n": 3, "none": None}
    ).trace((X,), {})
    found = traced.result.arguments([X])
    assert found["name"] == "model"
    assert found["n"] == 3
    assert found["none"] is None
    assert found["y"] is X


def test_what_closes_over_a_tracer_is_not_reused() -> None:
    seen: list[bool] = []

    def outer(y):
        traced = Tracer(lambda x: x * y).trace((X,), {})
        seen.append(traced.reusable)
        assert len(traced.closed.jaxpr.invars) == 1
        return y

    jax.jit(outer)(X)
    assert seen == [False]
    assert Tracer(partial(jnp.add, X)).trace((X,), {}).reusable


def test_inputs_are_named_after_parameters() -> None:
    tree = (({"w": X, "b": [X]}, X, 3), {"mask": X})
    names = input_names(tree, ("params", "x"))
    assert names == ("params.b.0", "params.w", "x", "mask")
    assert input_names(((X, X), {}), ()) == ("args.0", "args.1")


def test_a_value_that_cannot_be_compared_is_named() -> None:
    with pytest.raises(
        UnsupportedError, match=r"argument \[1\].*set is no array.*want"
    ):
        Tracer(lambda x, _: x).trace((X, {1}), {})


def test_a_branch_on_an_array_names_the_line() -> None:
    def function(x):
        if x.sum() > 0:
            return x
        return -x

    match = r"at test_trace.py:\d+: .*jax.lax.cond"
    with pytest.raises(CaptureError, match=match):
        Tracer(function).trace((X,), {})


def test_a_shape_is_an_input_and_has_no_values() -> None:
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert is_array(shape)
    assert not is_array((2,))
    check_values("it", [jnp.ones(2), np.ones(2)])
    with pytest.raises(
        UnsupportedError, match=r"it runs .*ShapeDtypeStruct\(shape=\(2,"
    ):
        check_values("it", [jnp.ones(2), shape])
