"""What a function closes over is followed; models that hide their state are refused."""

import functools
import types
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError, UnsupportedError
from tests.jax_programs import normal

X = normal(3, 4)
W = normal(4, 4, seed=1)


def follows(function, change, name):
    """Check that a converted function gives what the plain one does, after a change."""
    converted = amprewrite.convert(function)
    for _ in range(2):
        assert jnp.allclose(converted(X), function(X), rtol=2e-2, atol=2e-2)
    before = converted(X)
    change()
    with pytest.warns(AmpWarning, match=f"closes over {name}, which has changed"):
        found = converted(X)
    assert not jnp.allclose(found, before, rtol=2e-2, atol=2e-2)
    assert jnp.allclose(found, function(X), rtol=2e-2, atol=2e-2)
    assert len(converted.plan.lowered) == 1
    assert (converted(X) == found).all()


def test_variables_of_an_enclosing_function_are_followed():
    w = W
    table = {"w": [W]}
    array = np.asarray(W).copy()
    scale = 1.0

    def rebind():
        nonlocal w
        w = 2 * w

    def rescale():
        nonlocal scale
        scale = 3.0

    follows(lambda x: x @ w, rebind, "w")
    follows(lambda x: x @ table["w"][0], lambda: table.update(w=[3 * W]), "table")
    follows(lambda x: x @ array, lambda: array.__imul__(2), "array")
    follows(lambda x: (x @ W) * scale, rescale, "scale")


def test_a_helper_a_default_and_arguments_that_are_bound_are_looked_into():
    table = {"w": W}

    def helper(x):
        return x @ table["w"]

    def change():
        table["w"] = 2 * table["w"]

    def with_default(x, held=table):
        return x @ held["w"]

    def with_argument(held, x):
        return x @ held["w"]

    follows(lambda x: helper(x), change, "table")  # noqa: PLW0108  # names a helper
    follows(with_default, change, "defaults")
    follows(functools.partial(with_argument, table), change, "arguments")


class Model:
    def __init__(self):
        self.w = W
        self.seen = None

    def __call__(self, x):
        return x @ self.w

    def other(self, x):
        return x @ self.w

    def noting(self, x):
        self.seen = x @ self.w
        return self.seen


def test_an_object_that_is_called_is_followed():
    for take in (lambda m: m, lambda m: m.other, lambda m: lambda x: m(x) + 0):
        model = Model()
        name = "self.w" if take(model) is model else r"\w+.w"
        follows(take(model), lambda m=model: setattr(m, "w", 2 * W), name)


def test_an_object_that_is_changed_by_a_trace_is_refused():
    with pytest.raises(CaptureError, match=r"changes self\.seen, which it closes over"):
        amprewrite.convert(Model().noting, args=(X,))


def test_a_model_of_nnx_that_is_closed_over_is_followed():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def change():
        model.kernel[...] = 2 * model.kernel[...]

    follows(lambda x: model(x), change, "model")  # noqa: PLW0108  # closes over it


def test_what_does_not_change_is_traced_once():
    traces = []

    def function(x):
        traces.append(1)
        return x @ W

    converted = amprewrite.convert(function)
    for _ in range(3):
        converted(X)
    assert len(traces) <= 2  # in two precisions


def keras_like() -> Any:
    """A model as Keras has them: classes of a module of that name."""

    def stateless_call(self, held, rest, x):
        del self
        return x @ held[0], rest

    body = {
        "__module__": "keras.src.models.model",
        "__call__": lambda self, x: x @ self.variables[0].value,
        "stateless_call": stateless_call,
        "variables": [types.SimpleNamespace(value=W)],
    }
    return type("Model", (), body)()


def test_a_model_of_keras_is_refused_and_its_stateless_call_converted():
    model = keras_like()
    for given in (model, model.__call__):
        with pytest.raises(UnsupportedError, match=r"convert\(model.stateless_call\)"):
            amprewrite.convert(given)
    converted = amprewrite.convert(model.stateless_call, args=([W], [], X))
    assert len(converted.plan.lowered) == 1

    def change():
        model.variables[0].value = 2 * W

    follows(lambda x: model(x), change, "model")  # noqa: PLW0108  # closes over it


def test_programs_are_kept_up_to_a_number(monkeypatch):
    from amprewrite.frameworks.jaxpr.function import converted_function

    monkeypatch.setattr(converted_function, "KEPT", 3)
    plan = amprewrite.inspect(lambda x, n: x @ W + n, args=(X, 0))
    converted = amprewrite.convert(lambda x, n: x @ W + n, args=(X, 0), plan=plan)
    for n in range(6):
        converted(X, n)
    assert len(converted.prepared) == 3
    assert converted.pinned in converted.prepared  # that of the plan
