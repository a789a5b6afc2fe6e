"""NNX modules share their state: statistics, counters and training go on as before."""

import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    NotCapturedError,
    PlanMismatchError,
)
from tests.jax_programs import (
    CONTRACTIONS,
    FORWARD,
    GRADIENT,
    checked_jaxpr,
    dtypes,
    full_contractions,
    normal,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 6, 6, 3)


class Block(nnx.Module):
    def __init__(self, size, *, rngs):
        self.conv = nnx.Conv(size, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.norm(self.conv(x)))


class Attention(nnx.Module):
    def __init__(self, *, rngs):
        self.query, self.key, self.value = (
            nnx.Linear(8, 8, rngs=rngs) for _ in range(3)
        )
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, x):
        x = self.norm(x)
        weights = jax.nn.softmax(self.query(x) @ self.key(x).swapaxes(-1, -2) / 8**0.5)
        return x + weights @ self.value(x)


class Network(nnx.Module):
    def __init__(self, *, rngs, rate=0.0):
        self.blocks = nnx.List([Block(3, rngs=rngs), Block(8, rngs=rngs)])
        self.attention = Attention(rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.attention(x.reshape(x.shape[0], -1, 8))
        return self.head(self.drop(x.mean(1)))


def build(rate=0.0):
    return Network(rngs=nnx.Rngs(0), rate=rate)


def paths(plan):
    dots = (d for d in plan.decisions if d.native in CONTRACTIONS)
    return list(dict.fromkeys(d.path for d in dots))


def pure(model):
    """``model`` as a function of its state, for make_jaxpr."""
    graphdef, state = nnx.split(model)
    return (lambda state, x: nnx.merge(graphdef, state, copy=True)(x)), state


def loss(model, x):
    return (model(x) ** 2).mean()


def test_it_is_an_nnx_module_with_the_same_state():
    model = build()
    converted = amprewrite.convert(model, args=(X,))
    assert isinstance(converted, Network)
    assert isinstance(converted.head, nnx.Linear)
    assert converted.head.kernel is model.head.kernel
    states = nnx.state(converted), nnx.state(model)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    assert all(
        a is b for a, b in zip(*(jax.tree.leaves(s) for s in states), strict=True)
    )


def test_every_contraction_is_low_and_state_stays_full():
    model, reference = build(), build()
    converted = amprewrite.convert(model, args=(X,))
    before = nnx.state(build(), nnx.BatchStat)
    assert relative_error(nnx.state(model), nnx.state(reference)) == 0
    closed = checked_jaxpr(*_applied(pure(converted)))
    assert not full_contractions(closed)
    assert len(paths(converted.plan)) == 7
    dots = [d for d in converted.plan.decisions if d.native in CONTRACTIONS]
    assert len(dots) == 8
    assert {d.precision for d in dots} == {"bfloat16"}

    found, expected = converted(X), reference(X)
    assert found.dtype == jnp.float32
    assert relative_error(found, expected) <= FORWARD
    after = nnx.state(model, nnx.BatchStat)
    assert relative_error(after, nnx.state(reference, nnx.BatchStat)) <= FORWARD
    assert relative_error(after, before) > 0.01
    assert dtypes(nnx.state(model)) == dtypes(nnx.state(reference))


def _applied(function_and_state):
    function, state = function_and_state
    return function, state, X


def test_statistics_are_updated_inside_the_transformations_of_nnx():
    model, reference = build(), build()
    converted = amprewrite.convert(model)
    step = nnx.jit(nnx.value_and_grad(loss))
    value, grads = step(converted, X)
    wanted, expected = step(reference, X)
    assert value == pytest.approx(float(wanted), rel=FORWARD)
    assert relative_error(grads, expected) <= GRADIENT
    assert dtypes(grads) == dtypes(expected)
    assert set(dtypes(grads)) == {"float32"}
    stats = nnx.state(model, nnx.BatchStat), nnx.state(reference, nnx.BatchStat)
    assert relative_error(*stats) <= FORWARD
    assert relative_error(stats[0], nnx.state(build(), nnx.BatchStat)) > 0.01
    assert set(dtypes(stats[0])) == {"float32"}


def test_gradients_have_only_low_contractions():
    function, state = pure(amprewrite.convert(build()))
    params, rest = nnx.split_state(state, nnx.Param, ...)

    def of_params(params):
        return (function(nnx.merge_state(params, rest), X) ** 2).mean()

    assert not full_contractions(checked_jaxpr(jax.grad(of_params), params))


def test_names_of_modules_reach_the_plan():
    plan = amprewrite.inspect(build(), args=(X,))
    assert paths(plan) == [
        "blocks.0.conv",
        "blocks.1.conv",
        "attention.query",
        "attention.key",
        "attention",
        "attention.value",
        "head",
    ]
    assert "blocks.1.norm" in {d.path for d in plan.decisions}
    weights = {c.value for c in plan.casts if c.is_weight}
    assert "blocks.0.conv.kernel" in weights


def test_a_rule_on_the_head_and_one_that_matches_nothing():
    rules = [{"path": "head", "class": "deny"}, {"path": "tail", "class": "deny"}]
    with pytest.warns(AmpWarning, match="tail"):
        converted = amprewrite.convert(build(), args=(X,), overrides=rules)
    dots = [d for d in converted.plan.decisions if d.native in CONTRACTIONS]
    assert {d.path for d in dots if d.precision != "bfloat16"} == {"head"}
    assert len(full_contractions(checked_jaxpr(*_applied(pure(converted))))) == 1
    norms = [d for d in converted.plan.decisions if d.path == "attention.norm"]
    assert {"rsqrt", "reduce_sum"} <= {d.native for d in norms if d.op_class == "deny"}
    assert any("tail" in line for line in converted.plan.warnings)


def test_random_numbers_advance_as_before():
    model, reference = build(rate=0.5), build(rate=0.5)
    converted = amprewrite.convert(model, args=(X,))
    assert model.drop.rngs.count[...] == 0  # a trace leaves no mark
    for _ in range(2):
        assert relative_error(converted(X), reference(X)) <= FORWARD
    assert model.drop.rngs.count[...] == reference.drop.rngs.count[...] == 2


def test_modes_are_programs_of_their_own():
    model = build(rate=0.5)
    converted = amprewrite.convert(model)
    converted(X)
    before = len(converted.plan.decisions)
    converted.eval()
    assert model.drop.deterministic
    assert (converted(X) == converted(X)).all()
    assert relative_error(converted(X), model(X)) <= FORWARD
    assert len(converted.plan.decisions) > before


def test_read_only_state_may_be_closed_over():
    model = build().eval() or build()
    model.eval()
    converted = amprewrite.convert(model, args=(X,))
    found = jax.jit(lambda x: converted(x))(X)  # noqa: PLW0108  # closes over it
    assert relative_error(found, model(X)) <= FORWARD


@pytest.mark.slow
def test_training_falls_as_in_full_precision():
    optax = pytest.importorskip("optax")

    def train(model):
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer):
            value, grads = nnx.value_and_grad(lambda m: ((m(X) - 1) ** 2).mean())(model)
            optimizer.update(model, grads)
            return value

        return [float(step(model, optimizer)) for _ in range(10)]

    model = build()
    full, low = train(build()), train(amprewrite.convert(model))
    assert low[-1] < low[0] / 2
    assert low[-1] == pytest.approx(full[-1], rel=0.2)
    assert (
        relative_error(nnx.state(model, nnx.Param), nnx.state(build(), nnx.Param)) > 0
    )


def test_new_variables_are_written_back():
    class Sowing(nnx.Module):
        def __init__(self, *, rngs):
            self.linear = nnx.Linear(3, 4, rngs=rngs)

        def __call__(self, x):
            y = self.linear(x)
            self.seen = nnx.Intermediate(y.mean())
            return y

    model = Sowing(rngs=nnx.Rngs(0))
    converted = amprewrite.convert(model)
    converted(X)
    seen = nnx.pop(converted, nnx.Intermediate)
    assert dtypes(seen) == ["float32"]


def test_it_is_traced_once_in_each_precision_for_each_signature():
    traces = []

    class Counting(nnx.Module):
        def __init__(self, *, rngs):
            self.linear = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x, *, scale=1.0):
            traces.append(x.shape)
            return self.norm(self.linear(x)) * scale

    converted = amprewrite.convert(Counting(rngs=nnx.Rngs(0)), args=(X,))
    for _ in range(3):
        converted(X)
    assert len(traces) == 2
    for _ in range(2):
        converted(X, scale=2.0)
    assert len(traces) == 4


def test_inspect_and_plans():
    model = build()
    plan = amprewrite.inspect(model, args=(X,))
    converted = amprewrite.convert(model, args=(X,))
    assert amprewrite.inspect(converted) == plan == converted.plan
    assert converted.casts == plan.casts
    again = amprewrite.convert(model, args=(X,), plan=plan)
    assert again.plan == plan
    with pytest.raises(PlanMismatchError, match="does not fit"):
        amprewrite.convert(model.head, args=(normal(2, 8),), plan=plan)
    lazy = amprewrite.convert(model)
    with pytest.raises(NotCapturedError, match="call it"):
        _ = lazy.plan
    off = amprewrite.convert(converted, "off", args=(X,))
    assert not off.plan.lowered
    assert type(off).__mro__[1] is Network
