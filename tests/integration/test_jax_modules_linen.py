"""Linen modules keep init and apply: variables, collections, rngs and methods."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from tests.jax_programs import (
    CONTRACTIONS,
    FORWARD,
    GRADIENT,
    checked_jaxpr,
    dtypes,
    equations,
    full_contractions,
    normal,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

WIDTH = 16
IDS = jnp.arange(12).reshape(2, 6)
KEY = jax.random.key(0)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, *, train):
        attn = nn.MultiHeadDotProductAttention(num_heads=2, name="attn")
        x = x + attn(nn.LayerNorm(name="first")(x))
        h = nn.Dense(32, name="up")(nn.LayerNorm(name="second")(x))
        h = nn.Dropout(0.1, deterministic=not train)(nn.gelu(h))
        return x + nn.Dense(WIDTH, name="down")(h)


class Transformer(nn.Module):
    depth: int = 2

    def setup(self):
        self.embed = nn.Embed(20, WIDTH)
        self.blocks = [Block() for _ in range(self.depth)]
        self.head = nn.Dense(5)

    def __call__(self, ids, *, train=False):
        return self.head(self.encode(ids, train=train))

    def encode(self, ids, *, train=False):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, train=train)
        return x

    def score(self, ids):
        return self.embed.attend(self.encode(ids))


class Convolution(nn.Module):
    @nn.compact
    def __call__(self, x, *, train):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        return nn.Dense(4)(nn.relu(x).mean((1, 2)))


class Offset(nn.Module):
    @nn.compact
    def __call__(self, x):
        far = nn.initializers.constant(100.0)
        return nn.LayerNorm()(nn.Dense(64, bias_init=far)(x))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.RNN(nn.LSTMCell(WIDTH))(x))


@pytest.fixture(scope="module")
def model():
    return Transformer()


@pytest.fixture(scope="module")
def variables(model):
    return model.init(KEY, IDS)


@pytest.fixture(scope="module")
def converted(model, variables):
    return amprewrite.convert(model, args=(variables, IDS))


def paths(plan):
    dots = (d for d in plan.decisions if d.native in CONTRACTIONS)
    return list(dict.fromkeys(d.path for d in dots))


def test_it_is_a_linen_module_with_the_same_variables(model, converted, variables):
    assert isinstance(converted, Transformer)
    assert converted.depth == 2
    assert repr(converted) == repr(model)
    found = converted.init(KEY, IDS)
    assert relative_error(found, variables) == 0
    assert jax.tree.structure(found) == jax.tree.structure(variables)


def test_every_contraction_is_low_and_results_are_close(model, converted, variables):
    found = jax.jit(converted.apply)(variables, IDS)
    assert found.dtype == jnp.float32
    assert relative_error(found, model.apply(variables, IDS)) <= FORWARD
    closed = checked_jaxpr(converted.apply, variables, IDS)
    assert not full_contractions(closed)

    def gradient(apply):
        return jax.grad(lambda v: (apply(v, IDS) ** 2).mean())

    found = jax.jit(gradient(converted.apply))(variables)
    expected = jax.jit(gradient(model.apply))(variables)
    assert relative_error(found, expected) <= GRADIENT
    assert dtypes(found) == dtypes(variables)
    assert not full_contractions(checked_jaxpr(gradient(converted.apply), variables))


def test_names_of_modules_reach_the_plan(converted):
    inside = ["attn.query", "attn.key", "attn.value", "attn", "attn.out", "up", "down"]
    expected = [f"blocks_{i}.{name}" for i in range(2) for name in inside]
    assert paths(converted.plan) == [*expected, "head"]
    assert "blocks_0.first" in {d.path for d in converted.plan.decisions}


def test_other_methods_and_random_numbers(model, converted, variables):
    for options in (
        {"train": True, "rngs": {"dropout": KEY}},
        {"method": "encode"},
        {"method": Transformer.encode, "train": True, "rngs": {"dropout": KEY}},
        {"method": "score"},
    ):
        found = converted.apply(variables, IDS, **options)
        expected = model.apply(variables, IDS, **options)
        assert relative_error(found, expected) <= FORWARD, options


def test_the_path_of_a_method_is_that_of_its_module(model, variables):
    plan = amprewrite.inspect(model, args=(variables, IDS), kwargs={"method": "score"})
    assert paths(plan)[-1] == "embed"


def test_mutable_collections_are_updated_in_full_precision():
    model = Convolution()
    x = normal(4, 6, 6, 3)
    variables = model.init(KEY, x, train=False)
    converted = amprewrite.convert(model)

    def run(module):
        return jax.jit(
            lambda v: module.apply(v, x, train=True, mutable=["batch_stats"])
        )(variables)

    (found, after), (expected, wanted) = run(converted), run(model)
    assert relative_error(found, expected) <= FORWARD
    assert relative_error(after, wanted) <= FORWARD
    assert relative_error(after, {"batch_stats": variables["batch_stats"]}) > 0.01
    assert dtypes(after) == dtypes(wanted)
    assert [d.precision for d in converted.plan.decisions if d.native in CONTRACTIONS]
    assert paths(converted.plan) == ["Conv_0", "Dense_0"]
    _, seen = converted.apply(variables, x, train=False, capture_intermediates=True)
    assert "intermediates" in seen


def test_a_bound_module_runs_by_the_plan(converted, variables):
    bound = converted.bind(variables)
    assert (bound(IDS) == converted.apply(variables, IDS)).all()
    encoded = converted.apply(variables, IDS, method="encode")
    assert (bound.encode(IDS) == encoded).all()
    assert bound.depth == 2
    assert bound.unbind() == (converted, variables)
    with pytest.raises(UnsupportedError, match="mutable"):
        converted.bind(variables, mutable=True)


def test_a_clone_is_converted_too(converted):
    clone = converted.clone(depth=1)
    variables = clone.init(KEY, IDS)
    clone.apply(variables, IDS)
    assert {path.partition(".")[0] for path in paths(clone.plan)} == {
        "blocks_0",
        "head",
    }


def test_inside_another_module_it_is_refused(converted):
    class Outer(nn.Module):
        inner: Any

        def __call__(self, ids):
            return self.inner(ids)

    with pytest.raises(UnsupportedError, match="convert the outermost module"):
        Outer(converted).init(KEY, IDS)


@pytest.mark.slow
def test_a_recurrent_network_runs_low_in_its_loop():
    model = Recurrent()
    x = normal(2, 12, WIDTH)
    variables = model.init(KEY, x)
    converted = amprewrite.convert(model, args=(variables, x))
    assert relative_error(converted.apply(variables, x), model.apply(variables, x)) <= (
        FORWARD
    )
    closed = checked_jaxpr(converted.apply, variables, x)
    dots = [e for e in equations(closed) if e.primitive.name in CONTRACTIONS]
    assert len(dots) == 9
    assert not full_contractions(closed)
    carries = [e for e in equations(closed) if e.primitive.name == "scan"]
    assert [str(v.aval.dtype) for v in carries[0].outvars[:2]] == ["float32"] * 2

    def gradient(apply):
        return jax.jit(jax.grad(lambda v: (apply(v, x) ** 2).mean()))(variables)

    found, expected = gradient(converted.apply), gradient(model.apply)
    assert relative_error(found, expected) <= GRADIENT


def test_an_offset_before_a_norm_is_no_problem():
    model, x = Offset(), normal(8, 64)
    variables = model.init(KEY, x)
    converted = amprewrite.convert(model)
    found = converted.apply(variables, x)
    assert relative_error(found, model.apply(variables, x)) <= 1e-2


def test_rules_name_modules_and_unused_ones_are_reported(model, variables):
    rules = [{"path": "head", "class": "deny"}, {"path": "tail", "class": "deny"}]
    with pytest.warns(AmpWarning, match="tail"):
        converted = amprewrite.convert(model, args=(variables, IDS), overrides=rules)
    closed = checked_jaxpr(converted.apply, variables, IDS)
    assert len(full_contractions(closed)) == 1
    denied = [d for d in converted.plan.decisions if d.rule == "overrides[0]"]
    assert {d.path for d in denied} == {"head"}


@pytest.mark.slow
def test_training_falls_as_in_full_precision(model, variables):
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-2)
    targets = jnp.arange(12).reshape(2, 6) % 5

    def train(model):
        @jax.jit
        def step(params, state):
            def loss(params):
                logits = model.apply({"params": params}, IDS)
                return optax.softmax_cross_entropy_with_integer_labels(
                    logits, targets
                ).mean()

            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, value

        params, values = variables["params"], []
        state = optimizer.init(params)
        for _ in range(15):
            params, state, value = step(params, state)
            values.append(float(value))
        return values

    full, low = train(model), train(amprewrite.convert(model))
    assert low[-1] < low[0] / 2
    assert low[-1] == pytest.approx(full[-1], rel=0.2)


def test_it_is_traced_once_in_each_precision_for_each_signature():
    traces = []

    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x, *, train=False):
            traces.append((x.shape, train))
            return nn.Dense(4)(x)

    model, x = Counting(), normal(2, WIDTH)
    variables = model.init(KEY, x)
    traces.clear()
    converted = amprewrite.convert(model, args=(variables, x))
    for _ in range(3):
        converted.apply(variables, x)
    assert len(traces) == 2
    for _ in range(2):
        converted.apply(variables, x, train=True, mutable=["losses"])
    assert len(traces) == 4


def test_args_without_variables_are_refused(model):
    with pytest.raises(UnsupportedError, match=r"start with .*Array.* apply"):
        amprewrite.inspect(model, args=(IDS,))
    with pytest.raises(UnsupportedError, match="start with nothing"):
        amprewrite.convert(model, kwargs={"x": IDS})


def test_inspect_and_plans(model, variables):
    plan = amprewrite.inspect(model, args=(variables, IDS))
    converted = amprewrite.convert(model, args=(variables, IDS))
    assert amprewrite.inspect(converted) == plan == converted.plan
    assert {c.value for c in plan.casts if c.is_weight} >= {"params.head.kernel"}
    again = amprewrite.convert(model, args=(variables, IDS), plan=plan)
    assert (again.apply(variables, IDS) == converted.apply(variables, IDS)).all()
    smaller = Transformer(depth=1)
    args = (smaller.init(KEY, IDS), IDS)
    with pytest.raises(PlanMismatchError, match="does not fit"):
        amprewrite.convert(smaller, args=args, plan=plan)
    lazy = amprewrite.convert(model)
    with pytest.raises(NotCapturedError, match="call it"):
        _ = lazy.plan
    off = amprewrite.convert(converted, "off", args=(variables, IDS))
    assert not off.plan.lowered
