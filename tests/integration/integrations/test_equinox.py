"""Surgery on converted Equinox modules, ensembles, filters and layers with state."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

import jax.numpy as jnp

import amprewrite
from tests.jax_programs import full_contractions, normal, relative_error

X, KEY = normal(8, 16), jax.random.key(0)
BOUNDS = (1e-4, 1e-2)


def build(key: Any = KEY) -> Any:
    return eqx.nn.MLP(16, 3, 32, 2, key=key)


def rows(model: Any, x: Any) -> Any:
    return jax.vmap(model)(x)


def loss(model: Any, x: Any) -> Any:
    return jnp.mean(rows(model, x) ** 2)


def check(found: Any, expected: Any) -> None:
    assert BOUNDS[0] < relative_error(found, expected) < BOUNDS[1]


@pytest.fixture(scope="module")
def pair() -> Any:
    model = build()
    return amprewrite.convert(model), model


def test_replaced_weights_are_used_also_where_the_module_was_compiled(
    pair: Any,
) -> None:
    run = eqx.filter_jit(rows)
    before = run(pair[0], X)
    low, full = (
        eqx.tree_at(lambda m: m.layers[0].weight, model, normal(32, 16, seed=3))
        for model in pair
    )
    check(run(low, X), rows(full, X))
    assert relative_error(run(low, X), before) > 0.5
    assert (run(pair[0], X) == before).all()


class Adapted(eqx.Module):
    """A layer with a product of two narrow matrices added."""

    layer: Any
    down: Any
    up: Any

    def __call__(self, x: Any) -> Any:
        return self.layer(x) + self.up @ (self.down @ x)


def test_a_replaced_layer_and_a_replaced_activation_run_low(pair: Any) -> None:
    def adapt(model: Any) -> Any:
        layer = Adapted(model.layers[1], normal(2, 32), normal(32, 2, seed=1))
        model = eqx.tree_at(lambda m: m.layers[1], model, layer)
        return eqx.tree_at(lambda m: m.activation, model, jnp.tanh)

    low, full = map(adapt, pair)
    check(rows(low, X), rows(full, X))
    assert not full_contractions(eqx.filter_make_jaxpr(rows)(low, X)[0])


def test_filters_train_a_part(pair: Any) -> None:
    def head(model: Any) -> Any:
        none = jax.tree.map(lambda _: False, model)
        return eqx.tree_at(lambda m: m.layers[-1].weight, none, replace=True)

    def gradient(model: Any) -> Any:
        trained, frozen = eqx.partition(model, head(model))
        return eqx.filter_value_and_grad(
            lambda trained: loss(eqx.combine(trained, frozen), X)
        )(trained)

    (value, low), (expected, full) = map(gradient, pair)
    assert abs(value - expected) < BOUNDS[1] * expected
    assert len(jax.tree.leaves(low)) == 1
    check(low.layers[-1].weight, full.layers[-1].weight)


@pytest.mark.parametrize("inside", [True, False])
def test_an_ensemble(inside: bool) -> None:  # noqa: FBT001
    keys = jax.random.split(KEY, 3)
    plain = eqx.filter_vmap(build)(keys)
    if inside:
        low = eqx.filter_vmap(lambda key: amprewrite.convert(build(key)))(keys)
    else:
        low = amprewrite.convert(plain)

    def run(models: Any) -> Any:
        return eqx.filter_vmap(rows, in_axes=(eqx.if_array(0), None))(models, X)

    check(run(low), run(plain))
    assert not full_contractions(eqx.filter_make_jaxpr(run)(low)[0])


def test_leaves_are_serialised_for_converted_and_plain(
    pair: Any, tmp_path: Any
) -> None:
    low, full = pair
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", low)
    other = build(jax.random.key(1))
    for like, expected in ((amprewrite.convert(other), low), (other, full)):
        found = eqx.tree_deserialise_leaves(tmp_path / "model.eqx", like)
        assert (rows(found, X) == rows(expected, X)).all()


class Normed(eqx.Module):
    first: Any
    norm: Any
    last: Any

    def __init__(self) -> None:
        self.first = eqx.nn.Linear(16, 32, key=KEY)
        self.norm = eqx.nn.BatchNorm(32, "batch", mode="batch")
        self.last = eqx.nn.Linear(32, 3, key=KEY)

    def __call__(self, x: Any, state: Any) -> Any:
        hidden, state = self.norm(self.first(x), state)
        return self.last(jax.nn.gelu(hidden)), state


def test_running_statistics_are_used_in_inference_mode() -> None:
    model, state = eqx.nn.make_with_state(Normed)()

    def run(model: Any) -> Any:
        batch = jax.vmap(
            model, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )
        made, after = batch(X, state)
        frozen = eqx.nn.inference_mode(model)
        return made, jax.vmap(lambda x: frozen(x, after)[0])(X), after

    found, expected = run(amprewrite.convert(model)), run(model)
    check(found[0], expected[0])
    check(found[1], expected[1])
    for new, old in zip(*map(jax.tree.leaves, (found[2], expected[2])), strict=True):
        assert new.dtype == old.dtype
        assert relative_error(new, old) < BOUNDS[1]
