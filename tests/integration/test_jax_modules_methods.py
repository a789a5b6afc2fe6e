"""Methods, properties and submodules of converted modules run by the plan too."""

# The fields are those of the classes that mix the methods in.
# pyright: reportAttributeAccessIssue=false

import warnings
from typing import Any

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import AmpWarning, NotCapturedError, UnsupportedError
from tests.jax_programs import (
    FORWARD,
    GRADIENT,
    checked_jaxpr,
    equations,
    full_contractions,
    normal,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(3, 8)


def low_contractions(function, *args):
    """How many contractions a function has, and how many of them are low."""
    closed = checked_jaxpr(function, *args)
    count = [e.primitive.name for e in equations(closed)].count("dot_general")
    return count, count - len(full_contractions(closed))


class Methods:
    """What both libraries' models do."""

    def encode(self, x):
        return jnp.tanh(self.layers[0](x))

    def __call__(self, x):
        return self.layers[1](self.encode(x)) @ self.mixer

    def loss(self, x, *, power=2):
        return (self(x) ** power).mean()

    def twice(self, x):
        return self.encode(x) @ self.mixer, self.encode(x + 1)

    def _private(self, x):
        return x @ self.mixer

    @property
    def squared(self):
        return self.mixer @ self.mixer

    @property
    def first(self):
        return self.layers[0]

    @staticmethod
    def scaled(x):
        return 2 * x

    def stepper(self):
        return lambda x: self.encode(x) + 1

    def until(self, x):
        for _ in range(3):
            x = self(x)
            if float(jnp.abs(x).sum()) > 1e9:
                break
        return x

    def turns(self, x):
        for _ in range(2):
            x = self(x)
            yield x

    def described(self, name):
        return f"{name} of {self.mixer.shape[0]}"


class Equinox(Methods, eqx.Module):
    layers: list
    mixer: Any

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 3)
        self.layers = [eqx.nn.Linear(8, 8, key=k) for k in keys[:2]]
        self.mixer = jax.random.normal(keys[2], (8, 8)) / 3

    @eqx.filter_jit
    def jitted(self, x):
        return self(x) + self.encode(x)

    def moved(self, by):
        return eqx.tree_at(lambda m: m.mixer, self, self.mixer + by @ by)

    @classmethod
    def made(cls):
        return cls()


class NNX(Methods, nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
        self.weight = nnx.Param(jax.random.normal(jax.random.key(2), (8, 8)) / 3)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.name = "none"

    @property
    def mixer(self):
        return self.weight[...]

    @nnx.jit
    def jitted(self, x):
        return self(x) + self.encode(x)

    def counted(self, x):
        self.calls[...] += 1
        return self.encode(x)

    def renamed(self, x, name):
        self.name = name
        return self.encode(x)


class Derived(Equinox):
    def encode(self, x):
        return super().encode(x) + 1


KINDS = pytest.mark.parametrize("kind", [Equinox, NNX, Derived])


def of_rows(function):
    """Layers of Equinox take one row; those of NNX take it as well."""
    return jax.vmap(function)


@KINDS
@pytest.mark.parametrize(
    ("name", "count"), [("encode", 1), ("_private", 1), ("__call__", 3), ("twice", 3)]
)
def test_every_method_runs_low_under_vmap_and_jit(kind, name, count):
    model = kind()
    method = of_rows(getattr(amprewrite.convert(model), name))
    assert low_contractions(method, X) == (count, count)
    assert low_contractions(jax.jit(method), X) == (count, count)
    expected = of_rows(getattr(model, name))(X)
    assert 0 < relative_error(method(X), expected) <= FORWARD


@KINDS
def test_a_jitted_method_a_submodule_and_a_property_run_low(kind):
    model = kind()
    converted = amprewrite.convert(model)
    assert relative_error(converted.jitted(X[0]), model.jitted(X[0])) <= FORWARD
    if kind is not NNX:  # nnx.jit writes to the variables, which a trace refuses
        assert low_contractions(converted.jitted, X[0]) == (4, 4)
    assert low_contractions(converted.layers[1], X[0]) == (1, 1)
    assert low_contractions(jax.vmap(converted.layers[1]), X) == (1, 1)
    assert low_contractions(lambda: converted.squared) == (1, 1)
    assert converted.first is converted.layers[0]
    assert converted.described("one") == model.described("one")
    assert converted.scaled(2) == 4


@KINDS
def test_gradients_over_methods_have_only_low_contractions(kind):
    model = kind()
    converted = amprewrite.convert(model)
    count, low = low_contractions(jax.grad(converted.loss), X[0])
    assert count == low == 6
    found, expected = (jax.grad(m.loss)(X[0]) for m in (converted, model))
    assert relative_error(found, expected) <= GRADIENT
    cubed = low_contractions(lambda x: converted.loss(x, power=3), X[0])
    assert cubed == (3, 3)


@KINDS
def test_what_a_method_gives_runs_by_the_plan(kind):
    converted = amprewrite.convert(kind())
    with pytest.warns(AmpWarning, match="stepper .* gives back a function"):
        step = converted.stepper()
    assert low_contractions(step, X[0]) == (1, 1)
    turns = lambda x: list(converted.turns(x))  # noqa: E731  # to count in
    assert low_contractions(turns, X[0]) == (6, 6)


@KINDS
def test_a_method_that_decides_by_values_runs_as_written_and_says_so(kind):
    model = kind()
    converted = amprewrite.convert(model)
    with pytest.warns(AmpWarning, match=rf"{kind.__name__}.until is not run by a plan"):
        found = converted.until(X[0])
    assert 0 < relative_error(found, model.until(X[0])) <= 3 * FORWARD
    assert not amprewrite.inspect(converted).unclassified
    assert len([d for d in converted.plan.lowered if d.native == "dot_general"]) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (converted.until(X[0]) == found).all()


@KINDS
def test_a_mistake_of_the_caller_is_his_own_error(kind):
    converted = amprewrite.convert(kind())
    with pytest.raises(TypeError, match="unexpected keyword"):
        converted.loss(X[0], strength=2)


def test_equinox_gives_back_modules_that_are_converted():
    model = Equinox()
    converted = amprewrite.convert(model)
    moved = converted.moved(jnp.eye(8))
    assert jax.tree.structure(moved) == jax.tree.structure(converted)
    assert low_contractions(moved, X[0]) == (3, 3)
    assert relative_error(moved(X[0]), model.moved(jnp.eye(8))(X[0])) <= FORWARD
    assert type(converted.made())()(X[0]).dtype == jnp.float32


def test_layers_are_stacked_and_scanned():
    converted = amprewrite.convert(Equinox())
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *converted.layers)
    arrays, rest = eqx.partition(stacked, eqx.is_array)

    def run(x):
        def turn(x, part):
            return eqx.combine(part, rest)(x), None

        return jax.lax.scan(turn, x, arrays)[0]

    assert low_contractions(run, X[0]) == (1, 1)


def test_state_that_a_method_changes_is_written_back():
    model, reference = NNX(), NNX()
    converted = amprewrite.convert(model)
    converted.counted(X)
    reference.counted(X)
    found, expected = converted.counted(X), reference.counted(X)
    assert relative_error(found, expected) <= FORWARD
    assert model.calls[...] == converted.calls[...] == 2
    assert low_contractions(*_pure(converted, "counted")) == (1, 1)


def _pure(model, name):
    graphdef, state = nnx.split(model)
    return lambda s, x: getattr(nnx.merge(graphdef, s), name)(x), state, X


def test_an_attribute_that_a_method_sets_is_set():
    model = NNX()
    converted = amprewrite.convert(model)
    with pytest.warns(AmpWarning, match="renamed .* sets the attribute name"):
        found = converted.renamed(X, "mine")
    assert converted.name == model.name == "mine"
    assert 0 < relative_error(found, model.encode(X)) <= FORWARD


def test_modules_of_nnx_follow_what_is_set_on_the_original():
    model = NNX()
    converted = amprewrite.convert(model)
    converted(X)
    model.layers[1] = nnx.Linear(8, 8, rngs=nnx.Rngs(7))
    assert 0 < relative_error(converted(X), model(X)) <= FORWARD
    converted.layers[0].kernel[...] = jnp.zeros((8, 8))
    assert (model.layers[0].kernel[...] == 0).all()


class NoCall(eqx.Module):
    weight: Any

    def score(self, x):
        return x @ self.weight


class Data(eqx.Module):
    weight: Any


def test_a_model_without_a_call_is_converted():
    converted = amprewrite.convert(NoCall(normal(8, 8)))
    with pytest.raises(NotCapturedError, match="NoCall"):
        _ = converted.plan
    assert low_contractions(converted.score, X) == (1, 1)
    assert len(converted.plan.lowered) == 1
    with pytest.raises(UnsupportedError, match="no __call__"):
        amprewrite.convert(NoCall(normal(8, 8)), args=(X,))
    with pytest.raises(UnsupportedError, match="no method"):
        amprewrite.convert(Data(X))
