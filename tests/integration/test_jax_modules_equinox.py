"""Equinox modules stay modules: same leaves, state, transformations and training."""

import io
import threading
from typing import Any

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from tests.jax_programs import (
    FORWARD,
    GRADIENT,
    checked_jaxpr,
    dtypes,
    full_contractions,
    normal,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

WIDTH = 16
X = normal(6, WIDTH)
BATCH = normal(4, 6, WIDTH, seed=1)


class Attention(eqx.Module):
    query: Any
    key: Any
    value: Any

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.query, self.key, self.value = (
            eqx.nn.Linear(WIDTH, WIDTH, key=k) for k in keys
        )

    def __call__(self, x):
        q, k, v = (jax.vmap(f)(x) for f in (self.query, self.key, self.value))
        return jax.nn.softmax(q @ k.T / WIDTH**0.5) @ v


class Block(eqx.Module):
    attn: Attention
    mlp: Any
    norm: Any

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.attn = Attention(first)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 32, 1, jax.nn.gelu, key=second)
        self.norm = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, x):
        x = x + self.attn(jax.vmap(self.norm)(x))
        return x + jax.vmap(self.mlp)(x)


class Jitted(Block):
    @eqx.filter_jit
    def __call__(self, x):
        return super().__call__(x)


class Network(eqx.Module):
    blocks: list
    head: Any
    width: int = eqx.field(static=True)

    def __init__(self, key, kind=Block, depth=2):
        first, second = jax.random.split(key)
        self.blocks = [kind(k) for k in jax.random.split(first, depth)]
        self.head = eqx.nn.Linear(WIDTH, 10, key=second)
        self.width = WIDTH

    def __call__(self, x):
        return self.head(self.encode(x).mean(0))

    def encode(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Checkpointed(Network):
    def encode(self, x):
        for block in self.blocks:
            x = eqx.filter_checkpoint(block)(x)
        return x


class Stacked(eqx.Module):
    blocks: Block

    def __init__(self, key):
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(key, 3))

    def __call__(self, x):
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)

        def turn(x, part):
            return eqx.combine(part, rest)(x), None

        return jax.lax.scan(turn, x, arrays)[0]


class Normalised(eqx.Module):
    linear: Any
    norm: Any

    def __init__(self, key):
        self.linear = eqx.nn.Linear(WIDTH, WIDTH, key=key)
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", mode="ema")

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)


@pytest.fixture(scope="module")
def model():
    return Network(jax.random.key(0))


@pytest.fixture(scope="module")
def converted(model):
    return amprewrite.convert(model, args=(X,))


def paths(plan):
    """The modules whose contractions are in the plan, in order."""
    dots = (d for d in plan.decisions if d.native == "dot_general")
    return list(dict.fromkeys(d.path for d in dots))


def loss(model, batch):
    return (jax.vmap(model)(batch) ** 2).mean()


def test_it_is_an_equinox_module_with_the_same_leaves(model, converted):
    assert isinstance(converted, Network)
    leaves, expected = jax.tree.leaves(converted), jax.tree.leaves(model)
    assert all(a is b for a, b in zip(leaves, expected, strict=True))
    assert converted.width == WIDTH
    assert isinstance(converted.blocks[1], type(model.blocks[1]))
    assert converted.blocks[1].norm.weight is model.blocks[1].norm.weight
    assert dtypes(converted) == dtypes(model)
    assert repr(converted) == repr(model)


def test_every_contraction_is_low_and_outputs_are_close(model, converted):
    found = converted(X)
    assert found.dtype == jnp.float32
    assert relative_error(found, model(X)) <= FORWARD
    assert not full_contractions(checked_jaxpr(converted, X))


def test_gradients_are_close_and_full(model, converted):
    expected = eqx.filter_grad(loss)(model, BATCH)
    found = eqx.filter_grad(loss)(converted, BATCH)
    assert relative_error(found, expected) <= GRADIENT
    assert dtypes(found) == dtypes(expected)
    arrays, rest = eqx.partition(converted, eqx.is_inexact_array)
    closed = checked_jaxpr(
        jax.grad(lambda part: loss(eqx.combine(part, rest), BATCH)), arrays
    )
    assert not full_contractions(closed)


def test_names_of_modules_reach_the_plan(converted):
    layers = ["attn.query", "attn.key", "attn.value", "attn", "mlp.layers.0"]
    inside = [*layers, "mlp.layers.1"]
    expected = [f"blocks.{i}.{name}" for i in range(2) for name in inside]
    assert paths(converted.plan) == [*expected, "head"]
    norms = [d for d in converted.plan.decisions if d.path == "blocks.1.norm"]
    assert {d.native for d in norms} >= {"rsqrt", "reduce_sum"}


@pytest.mark.parametrize("build", [Checkpointed, lambda key: Network(key, Jitted)])
def test_names_reach_through_what_rebuilds_modules(build, converted):
    model = build(jax.random.key(0))
    model(X)  # JAX has traced the jitted parts, without names
    assert paths(amprewrite.inspect(model, args=(X,))) == paths(converted.plan)


def test_stacked_modules_have_the_path_of_the_stack():
    plan = amprewrite.inspect(Stacked(jax.random.key(0)), args=(X,))
    assert paths(plan)[:2] == ["blocks.attn.query", "blocks.attn.key"]


@pytest.mark.parametrize(
    ("convert", "prefix"),
    [
        (lambda m: (jax.vmap(m), (BATCH,)), ""),
        (lambda m: (eqx.filter_vmap(m), (BATCH,)), ""),
        (lambda _: (loss, (Network(jax.random.key(0)), BATCH)), "model."),
        (lambda m: (lambda x: m(x), (X,)), "m."),  # noqa: PLW0108  # closes over m
        (lambda m: (eqx.filter_grad(loss), (m, BATCH)), "model."),
    ],
    ids=["vmap", "filter_vmap", "argument", "closed over", "filter_grad"],
)
def test_functions_that_call_modules_have_their_names(model, convert, prefix):
    function, args = convert(model)
    plan = amprewrite.inspect(function, args=args)
    assert f"{prefix}blocks.0.attn.query" in paths(plan)
    assert f"{prefix}head" in paths(plan)


def test_classes_are_as_before_after_a_trace_and_in_other_threads(model):
    seen = []

    class Watching(eqx.Module):
        inner: Network

        def __call__(self, x):
            thread = threading.Thread(target=lambda: seen.append(model(X)))
            thread.start()
            thread.join()
            return self.inner(x)

    before = Network.__call__
    plan = amprewrite.inspect(Watching(model), args=(X,))
    assert Network.__call__ is before
    assert seen[0].shape == (10,)
    assert "inner.blocks.0.attn.query" in paths(plan)


def test_a_rule_names_a_module_and_one_that_matches_nothing_is_reported(model):
    rules = [{"path": "head", "class": "deny"}, {"path": "haed", "class": "deny"}]
    with pytest.warns(AmpWarning, match="haed"):
        converted = amprewrite.convert(model, args=(X,), overrides=rules)
    plan = converted.plan
    assert ["haed" in line for line in plan.warnings] == [True]
    full = [
        d.path
        for d in plan.decisions
        if d.native == "dot_general" and d.precision == "float32"
    ]
    assert full == ["head"]
    assert len(full_contractions(checked_jaxpr(converted, X))) == 1


def test_updates_of_a_converted_module_are_converted(model, converted):
    weight = jnp.zeros_like(model.head.weight)
    changed = eqx.tree_at(lambda m: m.head.weight, converted, weight)
    assert relative_error(changed(X), model.head.bias) <= FORWARD
    arrays, rest = eqx.partition(converted, eqx.is_array)
    assert (eqx.combine(arrays, rest)(X) == converted(X)).all()
    assert jax.tree.structure(changed) == jax.tree.structure(converted)
    doubled = eqx.apply_updates(converted, eqx.filter(converted, eqx.is_inexact_array))
    assert not full_contractions(checked_jaxpr(doubled, X))


def test_leaves_are_saved_and_loaded(model, converted):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, converted)
    file.seek(0)
    like = Network(jax.random.key(1))
    loaded = eqx.tree_deserialise_leaves(file, like)
    assert (loaded(X) == model(X)).all()


def test_transformations_compose(model, converted):
    expected = jax.vmap(model)(BATCH)
    for run in (jax.vmap(converted), eqx.filter_jit(eqx.filter_vmap(converted))):
        assert relative_error(run(BATCH), expected) <= FORWARD
    tangent = jax.jvp(converted, (X,), (X,))[1]
    assert relative_error(tangent, jax.jvp(model, (X,), (X,))[1]) <= GRADIENT


def test_a_stateful_module_keeps_its_state_full():
    model, state = eqx.nn.make_with_state(Normalised)(jax.random.key(0))
    converted = amprewrite.convert(model)

    def run(model, state, x):
        batched = jax.vmap(
            model, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )
        return batched(x, state)

    found, after = eqx.filter_jit(run)(converted, state, X)
    expected, wanted = run(model, state, X)
    assert relative_error(found, expected) <= FORWARD
    assert dtypes(after) == dtypes(state)
    assert relative_error(after, wanted) <= FORWARD
    assert relative_error(after, state) > 0.01
    low = [d.path for d in converted.plan.lowered if d.native == "dot_general"]
    assert low == ["linear"]


@pytest.mark.slow
def test_training_falls_as_in_full_precision(model, converted):
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-2)

    @eqx.filter_jit
    def step(model, state):
        value, grads = eqx.filter_value_and_grad(loss)(model, BATCH)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state, value

    ends = []
    for start in (model, converted):
        trained = start
        state = optimizer.init(eqx.filter(trained, eqx.is_inexact_array))
        values = []
        for _ in range(10):
            trained, state, value = step(trained, state)
            values.append(float(value))
        assert type(trained) is type(start)
        assert values[-1] < values[0] / 2
        ends.append(values[-1])
    assert ends[1] == pytest.approx(ends[0], rel=0.1)


def test_it_is_traced_once_in_each_precision_for_each_signature():
    traces = []

    class Counting(eqx.Module):
        linear: Any
        activation: Any = jax.nn.relu
        rate: float = 0.5

        def __call__(self, x, scale=1.0):
            traces.append(x.shape)
            return self.activation(self.linear(x)) * self.rate * scale

    converted = amprewrite.convert(
        Counting(eqx.nn.Linear(WIDTH, 4, key=jax.random.key(0))), args=(X[0],)
    )
    for _ in range(3):
        converted(X[0])
        converted(X[1])
    assert len(traces) == 2
    changed = eqx.tree_at(lambda m: m.linear.weight, converted, converted.linear.weight)
    changed(X[0])
    assert len(traces) == 2
    converted(X[0], scale=2.0)
    converted(X[0], scale=2.0)
    assert len(traces) == 4


def test_inspect_and_plans(model, converted):
    plan = amprewrite.inspect(model, args=(X,))
    assert amprewrite.inspect(converted) == plan == converted.plan
    assert converted.casts == plan.casts
    again = amprewrite.convert(model, args=(X,), plan=plan)
    assert (again(X) == converted(X)).all()
    with pytest.raises(PlanMismatchError, match="does not fit"):
        amprewrite.convert(model.head, args=(X[0],), plan=plan)
    with pytest.raises(UnsupportedError, match="args="):
        amprewrite.inspect(model)


def test_there_is_no_plan_before_the_first_call(model):
    lazy = amprewrite.convert(model)
    with pytest.raises(NotCapturedError, match=r"call it, or .* args="):
        _ = lazy.plan
    with pytest.raises(NotCapturedError):
        amprewrite.inspect(lazy)
    lazy(X)
    assert lazy.plan.lowered


def test_a_converted_module_is_converted_anew(model, converted):
    again = amprewrite.convert(converted, "off", args=(X,))
    assert not again.plan.lowered
    assert relative_error(again(X), model(X)) < 1e-6
    assert type(again).__mro__[1] is Network


def test_parameters_are_named_and_known(converted):
    weights = {c.value for c in converted.plan.casts if c.is_weight}
    assert "head.weight" in weights
    assert "blocks.0.attn.query.weight" in weights
