"""The pass on functions of JAX: valid gradients, unit scales, loops, any batch."""

import functools
import math
import pickle

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.unit_scaling import (
    check_gradient_validity,
    rule,
    scale_fwd,
    track_scales,
)

V, D, T = 40, 32, 8
RNG = np.random.default_rng(0)


def drawn(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def affine(fan_in, fan_out):
    return {"w": drawn(fan_in, fan_out), "b": jnp.zeros(fan_out)}


def gain():
    return {"g": jnp.ones(D), "b": jnp.zeros(D)}


def layer():
    return {
        "one": gain(),
        "two": gain(),
        "qkv": affine(D, 3 * D),
        "out": affine(D, D),
        "up": drawn(D, 128),
        "down": affine(64, D),
    }


def norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    wide = lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
    return centred * wide * p["g"] + p["b"]


def linear(x, p):
    return x @ p["w"] + p["b"]


def attention(x, p):
    parts = jnp.split(linear(x, p["qkv"]), 3, -1)
    q, k, v = (z.reshape(*z.shape[:2], 4, -1).transpose(0, 2, 1, 3) for z in parts)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    y = jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v
    return linear(y.transpose(0, 2, 1, 3).reshape(x.shape), p["out"])


def swiglu(x, p):
    value, gate = jnp.split(x @ p["up"], 2, -1)
    return linear(value * jax.nn.silu(gate), p["down"])


def block(x, p):
    x = x + attention(norm(x, p["one"]), p)
    return x + swiglu(norm(x, p["two"]), p)


def parallel_block(x, p):
    z = norm(x, p["one"])
    return x + attention(z, p) + swiglu(norm(z, p["two"]), p)


def gpt(params, tokens, targets):
    """Token and position embeddings, a tied readout, SwiGLU; a block of each kind."""
    x = params["token"][tokens] + params["position"]
    for run, held in zip((block, parallel_block), params["blocks"], strict=True):
        x = run(x, held)
    logits = norm(x, params["norm"]) @ params["token"].T
    found = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(found, targets[..., None], -1).mean()


def stacked(params, tokens, targets):
    """A scan over layers, each under ``checkpoint``."""
    x = params["token"][tokens] + params["position"]

    def turn(x, held):
        return jax.checkpoint(block)(x, held), None

    x, _ = lax.scan(turn, x, params["blocks"])
    logits = norm(x, params["norm"]) @ params["token"].T
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def cnn(params, x, targets):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(
        x, params["one"], (1, 1), "VALID", dimension_numbers=numbers
    )
    x = jax.nn.relu(x + params["bias"])
    x = lax.conv_general_dilated(
        x, params["two"], (2, 2), "VALID", dimension_numbers=numbers
    )
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    logits = linear(jax.nn.gelu(x).mean((1, 2)), params["out"])
    hot = jax.nn.one_hot(targets, 10)
    return -(hot * jax.nn.log_softmax(logits)).sum(-1).mean()


def recurrent(params, x):
    """A weight that every turn reads, and a state that begins with zeros."""

    def turn(h, x):
        h = jnp.tanh(x @ params["w"] + h @ params["u"])
        return h, h

    _, states = lax.scan(turn, jnp.zeros((x.shape[1], D)), x)
    return states @ params["out"]


def tokens(batch=4):
    return tuple(RNG.integers(V, size=(2, batch, T)))


def embedded(batch=4):
    return (RNG.standard_normal((batch, T, D), dtype=np.float32),)


def images(batch=4):
    return (
        RNG.standard_normal((batch, 16, 16, 3), dtype=np.float32),
        RNG.integers(10, size=batch),
    )


def sequence(batch=4):
    return (RNG.standard_normal((5, batch, D), dtype=np.float32),)


@functools.cache
def models():
    ends = {"token": drawn(V, D), "position": drawn(T, D), "norm": gain()}
    layers = [layer() for _ in range(2)]
    joined = jax.tree.map(lambda *xs: jnp.stack(xs), *layers)
    conv = {
        "one": drawn(3, 3, 3, 16),
        "two": drawn(3, 3, 16, 32),
        "bias": jnp.zeros(16),
        "out": affine(32, 10),
    }
    square = {"w": drawn(D, D), "u": drawn(D, D), "out": drawn(D, V)}
    return {
        "gpt": (gpt, {**ends, "blocks": layers}, tokens),
        "parallel": (lambda p, x: parallel_block(x, p), layers[0], embedded),
        "stacked": (stacked, {**ends, "blocks": joined}, tokens),
        "cnn": (cnn, conv, images),
        "recurrent": (recurrent, square, sequence),
    }


@functools.cache
def scaled(name):
    function, params, draw = models()[name]
    return amprewrite.unit_scale(function, (params, *draw()))


ALL = ["gpt", "stacked", "cnn", "recurrent"]
LOSSES = ["stacked", "cnn"]


def wrong(function, args):
    found = check_gradient_validity(function, args)
    return [key for key, cosine in found.items() if not cosine >= 0.9999]


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_true(name):
    _, params, draw = models()[name]
    assert not wrong(scaled(name), (params, *draw()))


@pytest.mark.parametrize("name", ["parallel", "recurrent"])
def test_gradients_are_wrong_without_the_cut_edge_rule(name):
    function, params, draw = models()[name]
    args = (params, *draw())
    free = amprewrite.unit_scale(function, args, constraint=None)
    assert wrong(free, args)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_have_unit_scale(name):
    _, params, draw = models()[name]
    grads = jax.jit(jax.grad(scaled(name)))(params, *draw(16))
    stds = [float(g.std()) for g in jax.tree.leaves(grads) if g.ndim > 1]
    assert all(0.05 < std < 20 for std in stds), stds


@pytest.mark.parametrize("name", LOSSES)
def test_another_batch_gives_the_mean_loss(name):
    _, params, draw = models()[name]
    large, run = draw(8), jax.jit(scaled(name))
    parts = [run(params, *(x[i : i + 4] for x in large)) for i in (0, 4)]
    assert float(run(params, *large)) == pytest.approx(float(sum(parts)) / 2, rel=1e-5)


def test_gradients_follow_the_batch_of_the_call():
    _, params, draw = models()["recurrent"]
    (few,) = draw(4)
    more = np.tile(few, (1, 4, 1))
    run = jax.jit(jax.grad(lambda p, x: scaled("recurrent")(p, x).sum()))
    # 4 equal copies: sums over rows are 4 times as large, the factor is half.
    one, four = (run(params, x)["out"] for x in (few, more))
    np.testing.assert_allclose(2 * one, four, rtol=1e-3, atol=1e-3)


def test_residual_additions_are_found():
    assert len(scaled("gpt").scales.residuals) == 4
    assert len(scaled("parallel").scales.residuals) == 2
    assert len(scaled("stacked").scales.residuals) == 2  # of each turn
    assert not scaled("cnn").scales.residuals


def test_a_scan_over_layers_is_the_loop_that_is_written_out():
    def run(x, w):
        return x + jax.nn.gelu(jax.nn.standardize(x) @ w), None

    def looped(layers, x):
        return functools.reduce(lambda x, w: run(x, w)[0], layers, x)

    def scanned(w, x):
        return lax.scan(run, x, w)[0]

    w, x = drawn(3, D, D), drawn(8, D)
    found: list = []
    for function, held in ((looped, list(w)), (scanned, w)):
        scaled = amprewrite.unit_scale(function, (held, x))
        y, back = jax.vjp(jax.jit(scaled), held, x)
        found.append((y, jnp.stack(back(jnp.ones_like(y))[0])))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_weight_that_each_turn_reads_gets_the_root_of_the_turns():
    plan = scaled("recurrent").scales
    (factor,) = {s.backward for s in plan if s.value == "params.w" and s.cut}
    assert factor == pytest.approx(5**-0.5)


def test_it_goes_through_transformations():
    _, params, draw = models()["recurrent"]
    run, (x,) = scaled("recurrent"), draw()
    wanted = run(params, x)
    np.testing.assert_allclose(jax.jit(run)(params, x), wanted, rtol=1e-4, atol=1e-4)
    both = jax.jit(jax.vmap(run, (None, 0)))(params, jnp.stack([x, -x]))
    np.testing.assert_allclose(both[0], wanted, rtol=1e-5, atol=1e-5)
    _, tangent = jax.jvp(lambda x: run(params, x), (x,), (x,))
    assert np.isfinite(tangent).all()
    _, twice = lax.scan(lambda c, x: (c, run(params, x)), 0, jnp.stack([x, x]))
    np.testing.assert_allclose(twice[1], wanted, rtol=1e-5, atol=1e-5)


def test_it_converts_and_keeps_its_factors():
    _, params, draw = models()["stacked"]
    args = (params, *draw())
    low = amprewrite.convert(scaled("stacked"), "bf16", args=args)
    assert low.plan.lowered
    assert "scale" in {decision.canonical for decision in low.plan.decisions}
    found, wanted = (
        jax.jit(jax.value_and_grad(f))(*args) for f in (low, scaled("stacked"))
    )
    assert float(found[0]) == pytest.approx(float(wanted[0]), rel=0.02)
    pairs = zip(*map(jax.tree.leaves, (found[1], wanted[1])), strict=True)
    for a, b in pairs:
        cosine = (a * b).sum() / jnp.linalg.norm(a) / jnp.linalg.norm(b)
        assert cosine > 0.99
        assert float(jnp.linalg.norm(a) / jnp.linalg.norm(b)) == pytest.approx(1, 0.1)


def test_its_scales_are_tracked():
    _, params, draw = models()["recurrent"]
    found = track_scales(scaled("recurrent"), (params, *draw()))
    assert "amprewrite_scale" in {row.name for row in found.rows}


def test_branches_are_measured_and_stay_as_they_are():
    def function(w, x):
        y = x @ w
        return lax.cond(x[0, 0] > 0, jnp.sin, lambda z: 4 * z, y) @ w

    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(function, args)
    assert "empirical" in run.scales.rules.values()
    assert not wrong(run, args)


def test_loops_without_a_gradient_and_rules_of_the_user_stay():
    @jax.custom_vjp
    def straight(x):
        return jnp.round(x)

    straight.defvjp(lambda x: (straight(x), None), lambda _, g: (g,))

    def function(w, x):
        scale = lax.while_loop(lambda c: c < 8, lambda c: c * 2, jnp.abs(x).max())
        return straight(x @ w) / lax.stop_gradient(scale)

    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(function, args)
    assert run.scales.rules["custom_vjp_call"] == "empirical"
    assert np.isfinite(jax.grad(lambda w: run(w, args[1]).sum())(args[0])).all()


def test_weights_of_losses_are_those_of_the_model():
    def function(w, x):
        first = (x @ w).mean()
        return first, 0.1 * first + jnp.exp(first) / 7 + 1 / first

    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(function, args)
    first, whole = run(*args)
    wanted = 0.1 * first + jnp.exp(first) / 7 + 1 / first
    np.testing.assert_allclose(whole, wanted, rtol=1e-5)
    assert not wrong(run, args)


def test_reciprocals_are_left_as_they_are():
    def function(w, x):
        y = x @ w
        inverse = 1 / (jnp.abs(y).max(-1, keepdims=True) + 1e-6)
        return y * inverse

    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(function, args)
    assert abs(run(*args)).max() == pytest.approx(1, rel=0.7)
    assert not wrong(run, args)


def test_roots_of_what_may_be_zero_are_left_as_they_are():
    def distance(w, x):
        y = jnp.square(x @ w).sum(-1, keepdims=True)
        return jnp.sqrt(jnp.maximum(y, 0))

    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(distance, args)
    assert run.scales.rules["sqrt"] == "closed form"
    assert not wrong(run, args)


def test_a_symbol_that_is_computed_with_is_refused():
    (batch,) = jax.export.symbolic_shape("b")
    shapes = (
        jax.ShapeDtypeStruct((16, 16), jnp.float32),
        jax.ShapeDtypeStruct((batch, 16), jnp.float32),
    )
    args = drawn(16, 16), drawn(8, 16)
    wide = amprewrite.unit_scale(lambda w, x: jnp.tanh(x @ w), args)
    exported = jax.export.export(jax.jit(wide))(*shapes)
    np.testing.assert_allclose(exported.call(*args), wide(*args), rtol=1e-5)
    mean = amprewrite.unit_scale(lambda w, x: (x @ w).mean(), args)
    with pytest.raises(UnsupportedError, match=r"div at .* an extent that is a symbol"):
        jax.export.export(jax.jit(mean))(*shapes)


def test_measured_gradients_follow_the_batch_and_the_function_does_not():
    @jax.custom_vjp
    def linear(key, w, x):
        return x @ w + jax.random.normal(key, (1, 1))

    linear.defvjp(
        lambda key, w, x: (linear(key, w, x), (w, x)),
        lambda held, g: (None, held[1].T @ g, g @ held[0].T),
    )
    key, w = jax.random.key(0), drawn(16, 16)
    run = amprewrite.unit_scale(lambda w, x: linear(key, w, x), (w, drawn(8, 16)))
    plans = [run.scales]
    run(w, drawn(32, 16))
    plans.append(run.scales)
    forward, of_weight = (
        [s for plan in plans for s in plan if s.index == i] for i in (None, 1)
    )
    assert forward[0].forward == forward[1].forward
    ratio = of_weight[0].backward / of_weight[1].backward
    assert ratio == pytest.approx(2, rel=0.02)


def test_a_multiplier_is_undone():
    def curve(w, x):
        return jax.nn.softplus(x @ w)

    args = drawn(16, 16), drawn(8, 16)
    steep = amprewrite.unit_scale(curve, args, mult={"softplus": 4.0})
    y = args[1] @ args[0] / 4
    factor = rule("softplus", 4.0)[0]
    want = jax.nn.softplus(4 * y) / 4 * factor
    np.testing.assert_allclose(steep(*args), want, rtol=1e-4, atol=1e-5)


def test_closed_over_values_that_change_are_seen():
    held = {"w": drawn(16, 16)}
    x = drawn(4, 16)
    run = amprewrite.unit_scale(lambda x: x @ held["w"], (x,))
    before = run(x)
    held["w"] = 2 * held["w"]
    np.testing.assert_allclose(run(x), 2 * before, rtol=1e-6)


def product(w, x):
    return x @ w


def test_it_is_pickled():
    args = drawn(16, 16), drawn(8, 16)
    run = amprewrite.unit_scale(product, args)
    again = pickle.loads(pickle.dumps(run))
    np.testing.assert_array_equal(again(*args), run(*args))


SQUARE = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda w, x: jnp.linalg.cholesky(x @ w), UnitScalingError, "cholesky.*no"),
        (lambda w, x: jnp.fft.fft(x @ w).real, UnsupportedError, "complex arrays"),
        (lambda w, x: scale_fwd(x @ w, 2.0), UnsupportedError, "factors.*already"),
        (lambda w, x: (w > x).sum(), UnitScalingError, "there is nothing to scale"),
    ],
)
def test_what_cannot_be_scaled_is_refused(function, error, match):
    with pytest.raises(error, match=match):
        amprewrite.unit_scale(function, (SQUARE, SQUARE))


def test_a_body_without_a_rule_is_refused():
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(product, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    with pytest.raises(UnsupportedError, match=r"body of shard_map at .*; scale the"):
        amprewrite.unit_scale(mapped, (SQUARE, SQUARE))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"constraint": "gmeen"}, "unknown constraint 'gmeen'.*did you mean 'gmean'"),
        ({"tau": 0.0}, "tau is 0.0; want a weight above 0"),
        ({"mult": {"silly": 2.0}}, "mult names silly; want elementwise functions"),
    ],
)
def test_wrong_requests_are_refused(options, match):
    with pytest.raises(UnitScalingError, match=match):
        amprewrite.unit_scale(product, (SQUARE, SQUARE), **options)


def test_what_is_rewritten_already_is_refused():
    args = SQUARE, SQUARE
    with pytest.raises(UnsupportedError, match="unit-scaled already"):
        amprewrite.unit_scale(amprewrite.unit_scale(product, args), args)
    with pytest.raises(UnsupportedError, match="converted already"):
        amprewrite.unit_scale(amprewrite.convert(product, args=args), args)
