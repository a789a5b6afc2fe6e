"""Plans within a tolerance for JAX: what is predicted, what is measured."""

from functools import partial

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    ToleranceError,
    UnsupportedError,
)
from tests.jax_programs import normal, weight

WIDTH = 64


@pytest.fixture(autouse=True)
def quickly():
    """Let XLA compile quickly: the programs are small, and each is compiled often."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def flat(made):
    leaves = jax.tree.leaves(made)
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in leaves])


def error(converted, function, *args):
    right = flat(function(*args))
    return np.linalg.norm(flat(converted(*args)) - right) / np.linalg.norm(right)


def within(function, args, bound, policy="bf16", **options):
    return amprewrite.convert(
        function, policy, args=args, placement="optimal", tolerance=bound, **options
    )


def norm(x, g):
    centred = x - x.mean(-1, keepdims=True)
    return g * centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(p, x):
    heads, (rows, length, width) = 4, x.shape
    parts = (norm(x, p["g"]) @ p["qkv"]).reshape(rows, length, 3, heads, -1)
    q, k, v = parts.transpose(2, 0, 3, 1, 4)
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 4 / width**0.5)
    x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]
    return x + jax.nn.gelu(norm(x, p["h"]) @ p["up"]) @ p["down"]


def transformer(layers, x):
    for p in layers:
        x = block(p, x)
    return x


def layer(seed):
    return {
        "qkv": weight(WIDTH, 3 * WIDTH, seed=seed),
        "o": weight(WIDTH, WIDTH, seed=seed + 1),
        "up": weight(WIDTH, 2 * WIDTH, seed=seed + 2),
        "down": weight(2 * WIDTH, WIDTH, seed=seed + 3),
        "g": jnp.ones(WIDTH),
        "h": jnp.ones(WIDTH),
    }


LAYERS = [layer(10), layer(20)]
X, FRESH = normal(4, 16, WIDTH), normal(4, 16, WIDTH, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "target", "bounds"),
    [
        ("bf16", "eager", (1.0, 3e-3, 1e-3)),
        ("fp16", "eager", (1e-3,)),
        ("fp16", "compiled", (1e-3,)),
    ],
)
def test_tolerances_are_kept_and_predicted_and_cost_what_they_are_worth(
    policy, target, bounds
):
    costs = []
    for bound in bounds:
        converted = within(transformer, (LAYERS, X), bound, policy, target=target)
        plan = converted.plan
        assert plan.lowered
        for run in (converted, jax.jit(converted)):
            measured = error(run, transformer, LAYERS, X)
            assert measured <= bound
            assert error(run, transformer, LAYERS, FRESH) <= 1.1 * bound
            assert plan.predicted_error / 1.5 < measured < plan.predicted_error * 1.5
        costs.append(plan.cost.total_bytes)
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


@pytest.mark.slow
def test_by_the_prices_of_a_compiler_only_contractions_are_lowered():
    """Nothing else pays there; within 1e-3 there is no room for one in bfloat16."""
    loose = within(transformer, (LAYERS, X), 3e-3, target="compiled")
    assert {d.canonical for d in loose.plan.lowered} == {"matmul"}
    assert error(jax.jit(loose), transformer, LAYERS, X) <= 3e-3
    with pytest.warns(amprewrite.errors.AmpWarning, match="pays and keeps"):
        strict = within(transformer, (LAYERS, X), 1e-3, target="compiled")
    assert not strict.plan.lowered


def test_autocast_is_the_error_of_the_placement_promote():
    def run(w, x):
        return jnp.tanh(norm(jnp.tanh(x @ w) @ w, 1.0) @ w)

    promoted = amprewrite.convert(run, args=(W, FLAT))
    converted = within(run, (W, FLAT), "autocast")
    theirs = error(promoted, run, W, FLAT)
    assert theirs > 1e-3
    assert error(converted, run, W, FLAT) <= theirs * 1.001
    assert converted.plan.lowered


def recurrent(w, v, x):
    def turn(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h @ v

    return lax.scan(turn, jnp.zeros((x.shape[1], w.shape[0])), x)[1]


def converging(w, x):
    """Turns until it moves little: how often, only running it says."""

    def go(state):
        h, _ = state
        new = 0.5 * jnp.tanh(h @ w) + x
        return new, jnp.max(jnp.abs(new - h))

    return lax.while_loop(lambda s: s[1] > 1e-2, go, (x, jnp.inf))[0] @ w


def halving(size, w, x):
    """Turns as often as an argument says."""

    def go(state):
        h, size = state
        return jnp.tanh(h @ w) + x, size / 2

    return lax.while_loop(lambda s: s[1] > 1.0, go, (x, size))[0] @ w


def branching(flag, w, x):
    return lax.cond(flag, lambda h: jnp.sin(h) @ w, lambda h: h, x @ w) @ w


@jax.custom_vjp
def clipping(x):
    return x * 1.0


clipping.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-6, 1e-6),))


def clipped(w, x):
    return jax.nn.relu(clipping(x @ w)) @ w


def gradient(w, x):
    def loss(w):
        h = jax.checkpoint(lambda h: jnp.tanh(h @ w))(x @ w)
        return jnp.mean((h @ w - x) ** 2)

    return jax.grad(loss)(w)


def tree(given):
    return {"out": [given["x"] @ given["w"], 3], "ids": jnp.arange(3)}


W = weight(256, 256)
FLAT = normal(128, 256)
PROGRAMS = {
    "scan": (recurrent, W, W.T, normal(8, 64, 256)),
    "while": (halving, jnp.asarray(30.0), W, FLAT),
    "cond": (branching, jnp.asarray(True), W, FLAT),
    "custom rules": (clipped, W, FLAT),
    "remat, differentiated": (gradient, W, FLAT),
    "vmap": (jax.vmap(partial(clipped, W)), FLAT),
    "tree": (tree, {"w": W, "x": FLAT}),
    "closed over": (lambda x: jnp.tanh(x @ W) @ W, FLAT),
}


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_every_kind_keep_a_tolerance(name):
    function, *args = PROGRAMS[name]
    args = tuple(args)
    converted = within(function, args, 1e-1)
    plan = converted.plan
    assert plan.lowered
    measured = error(converted, function, *args)
    assert plan.predicted_error / 2.5 < measured < plan.predicted_error * 2.5
    assert measured <= 1e-1
    tight = within(function, args, measured * 0.7)
    assert error(tight, function, *args) <= measured * 0.7
    assert tight.plan.cost.total_bytes > plan.cost.total_bytes


def loud(params, x):
    """One layer reaches 1e5, and the next brings it back."""
    a, b, c, d = params
    return jax.nn.relu(jax.nn.relu(x @ a) @ (b * 4e5) @ (c * 1e-5)) @ d


@pytest.mark.filterwarnings("ignore::amprewrite.errors.OverflowWarning")  # as shown
def test_an_overflow_is_kept_full_without_being_named():
    params = [weight(256, 256, seed=i) for i in range(4)]
    args = params, FLAT
    free = amprewrite.convert(loud, "fp16", args=args, placement="optimal")
    assert not np.isfinite(free(*args)).all()
    converted = within(loud, args, 1e-2, "fp16")
    plan = converted.plan
    assert plan.by_op["dot_general_1"].precision == "float32"
    why = plan.by_op["dot_general_1"].why
    assert why.startswith("its values reach ")
    assert why.endswith(", beyond float16")
    assert float(why.split()[3].rstrip(",")) > 65504
    assert why in plan.explain("dot_general_1")
    assert plan.by_op["dot_general"].precision == "float16"
    assert plan.by_op["dot_general_3"].precision == "float16"
    assert error(converted, loud, *args) <= 1e-2


def test_each_output_has_its_own_bound():
    def two(w, x):
        return {"first": x @ w, "second": x @ w.T, "zero": x * 0.0}

    plan = amprewrite.inspect(
        two,
        args=(W, FLAT),
        placement="optimal",
        tolerance={"first": 1e-1, "second": 1e-5},
    )
    assert plan.by_op["dot_general"].precision == "bfloat16"
    assert plan.by_op["dot_general_1"].precision == "float32"
    with pytest.raises(ToleranceError, match="are 'first', 'second', 'zero'"):
        within(two, (W, FLAT), {"logits": 1e-2})
    with pytest.raises(ToleranceError, match="this output is zero"):
        within(two, (W, FLAT), {"zero": 1e-2})


def test_the_same_plan_twice():
    first = within(PROGRAMS["scan"][0], PROGRAMS["scan"][1:], 3e-3).plan
    assert within(PROGRAMS["scan"][0], PROGRAMS["scan"][1:], 3e-3).plan == first


def test_other_shapes_are_planned_by_what_was_measured():
    def run(w, x):
        return jnp.tanh(x @ w) @ w

    converted = within(run, (W, FLAT), 3e-3)
    assert jax.jit(converted)(W, FLAT).shape == FLAT.shape  # the same types
    more = normal(160, 256, seed=3)
    with pytest.warns(AmpWarning, match="predicted, not measured"):
        assert error(jax.jit(converted), run, W, more) <= 3e-3
    assert error(converted, run, W, more) <= 3e-3
    first, second = (converted.prepare((W, x), {})[0].plan for x in (FLAT, more))
    assert second.lowered == first.lowered
    assert second.predicted_error <= 3e-3


def test_another_program_is_measured_on_its_own_arguments():
    def run(w, x, *, twice=False):
        return jnp.tanh(x @ w) @ w if twice else x @ w

    converted = within(run, (W, FLAT), 1e-2)
    with pytest.raises(UnsupportedError, match="call the converted function once on"):
        jax.jit(partial(converted, twice=True))(W, FLAT)
    converted(W, FLAT, twice=True)
    jax.jit(partial(converted, twice=True))(W, FLAT)
    with pytest.raises(UnsupportedError, match="with args= outside of jit"):
        jax.jit(lambda x: within(run, (W, x), 1e-2)(W, x))(FLAT)


def test_a_tolerance_needs_arguments():
    with pytest.raises(UnsupportedError, match="tolerance needs args="):
        amprewrite.convert(clipped, placement="optimal", tolerance=1e-2)


def test_values_that_are_known_in_a_trace_will_do():
    def outer(x):
        return within(clipped, (W, FLAT), 1e-2)(W, x)

    assert jax.jit(outer)(FLAT).shape == FLAT.shape


def test_what_cannot_be_kept_is_an_error_that_says_why():
    with pytest.raises(ToleranceError, match="policy returns low outputs") as caught:
        within(
            clipped, (W, FLAT), 1e-4, "params=float32,compute=bfloat16,output=bfloat16"
        )
    assert caught.value.best == pytest.approx(1.7e-3, rel=0.5)
    with pytest.raises(ToleranceError, match=r"has NaN .* by log \(%log\) at test_jax"):
        within(lambda w, x: jnp.log(x @ w) @ w, (W, FLAT), 1e-2)
    with pytest.raises(UnsupportedError, match="this function gives none"):
        within(lambda w, x: jnp.argmax(x @ w), (W, FLAT), 1e-2)
    with pytest.raises(ToleranceError, match=r"of placement 'promote' on .* is 0"):
        within(jnp.sin, (FLAT,), "autocast")


def test_a_plan_keeps_the_tolerance_where_it_is_differentiated(tmp_path):
    converted = within(clipped, (W, FLAT), 1e-2)
    jax.grad(lambda w: converted(w, FLAT).sum())(W)
    converted.plan.save(tmp_path / "plan.json")
    again = amprewrite.Plan.load(tmp_path / "plan.json")
    assert again.predicted_error == converted.plan.predicted_error
    loaded = amprewrite.convert(clipped, args=(W, FLAT), plan=again)
    assert error(loaded, clipped, W, FLAT) <= 1e-2


@pytest.mark.filterwarnings("ignore:rewritten 0 of:amprewrite.errors.AmpWarning")
@pytest.mark.parametrize("target", ["eager", "compiled"])
@pytest.mark.parametrize("bound", [1e-1, 1e-3])
def test_a_loop_that_low_precision_never_ends_is_refused_and_no_hang(
    bound: float, target: str
):
    """Whatever errors cost: what is only compared has none to first order.

    What the test of the loop compares is full, up to the activation: the product
    behind that may be low.
    """
    converted = within(converging, (W / 2, FLAT), bound, target=target)
    assert error(converted, converging, W / 2, FLAT) <= bound
    assert {d.canonical for d in converted.plan.lowered} == {"matmul"}


def test_random_numbers_of_a_key_are_measured():
    def noisy(key, w, x):
        noise = jax.random.normal(key, x.shape)
        return jnp.tanh((x + noise) @ w) @ w

    args = jax.random.key(3), W, FLAT
    converted = within(noisy, args, 1e-2)
    assert converted.plan.lowered
    assert error(converted, noisy, *args) <= 1e-2


def test_an_equinox_module():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(256, 256, 256, 2, key=jax.random.key(0))

    def batched(model, x):
        return jax.vmap(model)(x)

    converted = within(batched, (model, FLAT), 1e-2)
    assert converted.plan.lowered
    assert error(converted, batched, model, FLAT) <= 1e-2
    layer = eqx.nn.Conv1d(64, 64, 3, key=jax.random.key(0))
    rows = normal(64, 512)
    single = within(layer, (rows,), 1e-2)
    assert isinstance(single, eqx.nn.Conv1d)
    assert single.plan.lowered
    assert error(single, layer, rows) <= 1e-2


def test_a_weight_that_would_be_cast_for_one_row_stays_full():
    """The cast at each call moves more than the product saves."""
    eqx = pytest.importorskip("equinox")
    layer = eqx.nn.Linear(2048, 2048, key=jax.random.key(0))
    with pytest.warns(amprewrite.errors.AmpWarning, match="pays and keeps"):
        single = within(layer, (normal(2048),), 1e-2)
    assert not single.plan.lowered


def test_a_linen_module():
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.LayerNorm()(nn.relu(nn.Dense(256)(x)))
            return {"logits": nn.Dense(8)(h)}

    variables = Model().init(jax.random.key(0), FLAT)
    converted = within(Model(), (variables, FLAT), {"logits": 1e-2})
    assert converted.plan.lowered
    apply = Model().apply
    assert error(converted.apply, apply, variables, FLAT) <= 1e-2
    assert error(converted.apply, apply, variables, FLAT[::-1] * 0.9) <= 1e-2


def test_an_nnx_module_is_bounded_by_what_it_gives_not_by_its_state():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(256, 256, rngs=rngs)
            self.norm = nnx.BatchNorm(256, rngs=rngs)
            self.second = nnx.Linear(256, 8, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.norm(self.first(x))))

    model = Model(nnx.Rngs(0))
    before = np.asarray(model.norm.mean[...])
    converted = within(model, (FLAT,), {"output": 1e-2})
    assert np.array_equal(model.norm.mean[...], before)
    assert converted.plan.lowered
    assert error(converted, model, FLAT) <= 1e-2


@pytest.mark.parametrize(("target", "least"), [("eager", 3), ("compiled", 2)])
def test_a_mask_that_is_drawn_stays_the_same_mask(target: str, least: int):
    """Rounded draws gave another mask, and an error of 5e-2."""
    w = weight(256, 256)

    def dropout(x, key):
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        return jnp.where(kept, (x @ w) / 0.9, 0) @ w

    args = (normal(128, 256), jax.random.key(0))
    low = amprewrite.convert(dropout, args=args, placement="optimal", target=target)
    assert len(low.plan.lowered) >= least
    assert error(low, dropout, *args) < 1e-2
    bounded = within(dropout, args, 1e-2, target=target)
    assert bounded.plan.lowered
    assert error(bounded, dropout, *args) < 1e-2


def test_error_against_bytes():
    w = weight(256, 256)
    args = (normal(128, 256),)
    points = amprewrite.pareto(lambda x: jnp.tanh(x @ w) @ w, args=args, points=4)
    assert [point.placement for point in points][-2:] == ["optimal", "promote"]
    for point in points:
        assert (point.measured or 0.0) <= 2 * point.predicted + 1e-6
    assert points[0].plan.lowered
    assert not points[-2].plan.lowered


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("target", ["eager", "compiled"])
@pytest.mark.parametrize(
    "draw", [jax.random.normal, jax.random.gumbel, jax.random.exponential]
)
def test_what_is_computed_of_a_draw_stays_finite(draw, target, policy):
    """A uniform number in low may be 1, of which these are infinite."""
    w, x = weight(128, 128), normal(256, 128)

    def noisy(w, x):
        h = x @ w
        return h + jax.nn.gelu(h) * draw(jax.random.key(0), h.shape)

    low = amprewrite.convert(
        noisy, policy, args=(w, x), placement="optimal", target=target
    )
    assert low.plan.lowered
    assert error(low, noisy, w, x) < 1e-2


def test_a_number_behind_stop_gradient():
    eqx = pytest.importorskip("equinox")
    layer, key = eqx.nn.Dropout(0.2), jax.random.key(2)
    w, x = weight(256, 256), normal(256, 256)

    def scaled(w, x):
        return (x @ w) * lax.stop_gradient(0.2)

    def dropped(w, x):
        return layer(x @ w, key=key) @ w

    for function in (scaled, dropped):
        converted = within(function, (w, x), 1e-2)
        assert converted.plan.lowered
        assert error(converted, function, w, x) <= 1e-2


def test_values_that_a_where_drops_count_for_nothing():
    w, x = weight(256, 256), normal(256, 256)

    def rooted(w, x):
        h = x @ w
        return jnp.where(h > 0, jnp.sqrt(h), 0) @ w

    converted = within(rooted, (w, x), 0.5)
    free = amprewrite.convert(rooted, args=(w, x), placement="optimal")
    assert converted.plan.cost.total_bytes == free.plan.cost.total_bytes
    ratio = converted.plan.predicted_error / error(converted, rooted, w, x)
    assert 0.8 < ratio < 2
    assert within(rooted, (w, x), "autocast").plan.predicted_error < 1e-2


def test_an_endless_loop_of_the_baseline_is_named():
    def settling(w, x):
        def turn(state):
            h, _, turns = state
            return jnp.tanh(h @ w * 0.3 + x), h, turns + 1

        def goes_on(state):
            moved = jnp.abs(state[0] - state[1]).max()
            return (moved > 1e-4) & (state[2] < 50)

        return lax.while_loop(goes_on, turn, (x, x + 1, 0))[0]

    w, x = weight(128, 128), normal(256, 128)
    with pytest.raises(ToleranceError, match="turns over 4 times as often"):
        within(settling, (w, x), "autocast")
