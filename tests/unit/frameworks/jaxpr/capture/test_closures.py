"""What a function closes over is found, and a change of it is seen."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.capture.closures import Closed, is_keras
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of

X = jnp.ones(2)
TABLE = {"x": X}


class Holder:
    def __init__(self):
        self.parts = [X, np.ones(2)]
        self.itself = self

    def __call__(self):
        return self.parts

    def method(self):
        return self.parts


def of_global():
    return TABLE["x"]


def test_names_of_what_is_closed_over():
    inner, array = X, np.zeros(2)

    def nested():
        return lambda: (inner, of_global())

    def names(function):
        return {name for name, _, _ in Closed(function, adapter_of).now()}

    assert names(of_global) == {"TABLE"}
    assert names(nested) == {"inner", "TABLE"}
    assert names(jax.jit(lambda: array)) == {"array"}
    bound = functools.partial(max, 1, X)
    assert names(bound) == {"arguments"}
    assert "self.parts" in names(Holder())
    assert "self.parts" in names(Holder().method)
    assert names(jnp.sin) == names(abs) == set()


def test_a_change_has_a_name():
    holder = Holder()
    closed = Closed(holder, adapter_of)
    assert closed.changed() is None
    assert closed.changed() is None
    holder.parts[1][0] = 5  # in place
    assert closed.changed() == "self.parts"
    assert closed.changed() is None
    holder.parts.append(X)
    assert closed.changed() == "self.parts"


def test_an_unassigned_variable_and_keys_without_an_order_are_no_problem():
    def function():
        return later, mixed

    closed = Closed(function, adapter_of)
    assert closed.changed() is None
    mixed = {1: X, "a": X}
    later = X
    assert closed.changed() == "later"
    assert function() == (later, mixed)


def test_a_container_inside_of_itself_counts_by_identity():
    names: dict[str, object] = {"x": [X]}
    names["names"] = names
    closed = Closed(lambda: names["x"], adapter_of)
    assert closed.changed() is None
    assert closed.changed() is None
    names = {"x": [X]}
    assert closed.changed() == "names"


def test_a_tracer_that_stays_behind_is_named():
    holder = Holder()
    closed = Closed(holder, adapter_of)
    closed.changed()
    assert closed.leaked() is None

    def leak(x):
        holder.parts[0] = x
        return closed.leaked()

    found = []
    jax.eval_shape(lambda x: found.append(leak(x)), X)
    assert found == ["self.parts"]


def test_keras_is_known_by_the_module_of_its_classes():
    body = {"__module__": "keras.src.layers", "stateless_call": None}
    layer = type("Layer", (), body)
    assert is_keras(layer())
    assert is_keras(type("Mine", (layer,), {})())
    assert not is_keras(Holder())
