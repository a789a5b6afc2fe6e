"""The measured error of each rounding, against errors that are really made."""

from functools import partial
from math import inf
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.jaxpr.capture.trace import Tracer, split
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Result, Sample
from amprewrite.frameworks.jaxpr.probes.runner import to_array
from amprewrite.frameworks.jaxpr.probes.sensitivity import (
    check_finite,
    measure_sensitivity,
    watch,
)
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.measure.runs import Run
from amprewrite.passes.error_budget.budget import find_probes
from amprewrite.plan.sensitivity import DIRECTIONS
from amprewrite.policy import Matcher, load_policy
from tests.jax_programs import normal, weight

X = normal(8, 16)
W = weight(16, 16)
V = weight(16, 16, seed=2)
MANY = 64


def sample_of(function, *args):
    traced = Tracer(function).trace(args, {})
    program = inline(traced.closed)
    arrays = split((args, {}))[1]
    result = Result(traced.result, lambda made: made)
    return Sample(program, read(program, {}), arrays, result)


def outputs(runner, sample) -> Any:
    made = sample.named(runner(runner.inputs(sample.inputs)))
    return {k: to_array(v) for k, v in made.items() if v.dtype.kind in "fc"}


def relative(found) -> Any:
    total = np.sqrt(sum(float(np.sum(y * y)) for y in found.values()))
    return dict.fromkeys(found, 1 / total)


def measured(function, *args, policy="bf16", directions=DIRECTIONS, factors=None):
    sample = sample_of(function, *args)
    probes = find_probes(
        sample.graph, Matcher(load_policy(policy)), keep_parameter_dtype=True
    )
    chosen = factors or relative(outputs(Exact(sample.program), sample))
    return sample, measure_sensitivity(
        sample, probes, chosen, watch(sample, probes), directions
    )


class Rounded(Exact):
    """Really rounds one value, or what one op reads."""

    def __init__(self, program, key):
        super().__init__(program)
        self.key = key

    def rounded(self, key, value):
        if key != self.key:
            return value
        return lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)

    def on_read(self, op, index, name, env):
        return self.rounded((name, op), super().on_read(op, index, name, env))

    def on_pass(self, boundary, value):
        return self.rounded(boundary.makes, super().on_pass(boundary, value))

    def on_result(self, step, name, value):
        return value if step.bodies else self.rounded(name, value)


def squared_error(sample, key):
    right = outputs(Exact(sample.program), sample)
    wrong = outputs(Rounded(sample.program, key), sample)
    scale = relative(right)
    return sum(float(np.sum(((wrong[k] - right[k]) * scale[k]) ** 2)) for k in right)


def scanned(w, x):
    def turn(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h * 2

    last, rows = lax.scan(turn, jnp.zeros(16), x)
    return last, rows


def turning(count, w, x):
    """A loop whose length only the arguments say."""
    start = x[0] @ w
    return lax.fori_loop(0, count, lambda i, h: jnp.tanh(h @ w) + x[i], start)


def nested(w, x):
    def grow(state):
        size, h = state
        return size * 2, jnp.tanh(h @ w)

    def turn(h, row):
        _, h = lax.while_loop(lambda s: s[0] < 9, grow, (jnp.sum(row * row) / 4, h))
        return h + row, h

    return lax.scan(turn, jnp.ones(16), x)


def branching(flag, w, x):
    h = x @ w
    return lax.cond(flag, lambda h: jnp.sin(h) @ w, lambda h: h @ w.T, h) @ w


def kept(w, x):
    return jax.checkpoint(lambda h: jnp.tanh(h @ w) @ w)(x @ w)


def ready(w, x):
    return jax.nn.softmax(jax.nn.relu(x @ w) @ w) @ w


@jax.custom_vjp
def clipped(x):
    return x * 1.5 + 1


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (jnp.clip(g, -1e-9, 1e-9),))


def deriving(w, x):
    def loss(w, x):
        return jnp.sum(jnp.tanh(clipped(jax.nn.relu(x @ w)) @ w) ** 2)

    return jax.grad(loss, argnums=(0, 1))(w, x)


def on_mesh(w, x, *, check_vma=True):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

    def body(w, v, x):
        return lax.psum(jnp.tanh(x @ w) @ v, "m")

    specs = (P(None, "m"), P("m", None), P("d", None))
    out = jax.shard_map(
        body, mesh=mesh, in_specs=specs, out_specs=P("d"), check_vma=check_vma
    )
    return out(w, w.T, x)


@jax.custom_jvp
def length(x):
    """A norm whose rule knows what to do at zero, where the body's own has NaN."""
    return jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))


@length.defjvp
def _length_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    size = length(x)
    return size, jnp.sum(x * t, -1, keepdims=True) / jnp.maximum(size, 1e-6)


def safe(w, x):
    h = x @ w
    return h * length(h) @ w


@jax.custom_vjp
def called(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


called.defvjp(lambda x: (called(x), x), lambda x, g: (g * jnp.cos(x),))


PROGRAMS = {
    "plain": (lambda w, x: jnp.tanh(x @ w) @ w, W, X),
    "scan": (scanned, W, X),
    "while": (turning, jnp.asarray(5), W, X),
    "nested": (nested, W, X),
    "cond": (branching, jnp.asarray(True), W, X),
    "remat": (kept, W, X),
    "custom_jvp": (ready, W, X),
    "custom_vjp": (lambda w, x: clipped(x @ w) @ w, W, X),
    "rule at zero": (safe, W, X.at[0].set(0)),
    "rule alone": (lambda w, x: called(x @ w) @ w, W, X),
    "gradient": (deriving, W, X),
    "vmap": (jax.vmap(lambda x: jnp.tanh(x @ W) @ V), X),
    "integers": (lambda i, w: w[i] @ w, jnp.arange(8), W),
    "tree": (lambda d: {"a": d["w"] @ d["w"], "b": [d["x"] @ W, 3]}, {"w": W, "x": X}),
    "complex": (lambda w, x: lax.complex(x @ w, jnp.sin(x @ w)), W, X),
    "mesh": (on_mesh, W, X),
    "unchecked mesh": (partial(on_mesh, check_vma=False), W, X),
}
LARGEST = 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_error_is_that_of_rounding_there(name):
    if "mesh" in name and jax.device_count() < 8:
        pytest.skip("needs eight devices")
    sample, found = measured(*PROGRAMS[name], directions=MANY)
    assert found.directions == MANY
    assert all(e < inf for e in found.all.values())
    keys = sorted(found.all, key=lambda key: (-found.all[key], str(key)))
    for key in keys[:LARGEST]:
        truth = squared_error(sample, key)
        assert truth > 1e-8
        # In a loop a turn rounds what the turns before have moved: another draw.
        assert truth / 2 < found.all[key] < truth * 2, key


def test_a_rule_that_is_no_derivative_is_not_believed():
    sample, found = measured(lambda w, x: clipped(x @ w) @ w, W, X)
    assert found.stored["dot_general"] == pytest.approx(
        squared_error(sample, "dot_general"), rel=3
    )


def test_only_the_gradient_through_the_edge_counts():
    """A value that two ops read: what one of them rounds, the other does not see."""
    sample, found = measured(lambda w, x: 100 * x + x @ w, W, X, directions=MANY)
    key = "input_1", "dot_general"
    assert found.read[key] == pytest.approx(squared_error(sample, key), rel=0.5)
    assert found.read["input_1", "mul"] > 100 * found.read[key]


def test_a_scalar_output_has_one_direction_and_is_exact():
    sample, found = measured(lambda w, x: jnp.mean((x @ w) ** 2), W, X)
    assert found.directions == 1
    truth = squared_error(sample, "dot_general")
    assert found.stored["dot_general"] == pytest.approx(truth, rel=2e-2)


def test_factors_weigh_the_outputs():
    def run(w, x):
        return x @ w, x @ w.T

    _, one = measured(run, W, X, factors={"0": 1.0})
    assert one.stored["dot_general"] > 0.0
    assert one.stored["dot_general_1"] == 0.0
    _, ten = measured(run, W, X, factors={"0": 10.0})
    ratio = ten.stored["dot_general"] / one.stored["dot_general"]
    assert ratio == pytest.approx(100, rel=1e-3)


def test_directions_are_the_same_each_time():
    first = measured(ready, W, X)[1]
    with jax.default_prng_impl("rbg"):
        assert measured(ready, W, X)[1] == first
    assert first.directions == DIRECTIONS


def test_values_beyond_the_range_have_an_infinite_error_and_a_peak():
    def run(w, x):
        def turn(h, row):
            return h * 2, jnp.argmax(row * 6e4 * h)

        loud = (x @ w) * 6e4
        _, found = lax.scan(turn, jnp.ones(()), x)
        return jnp.argmax(loud, -1), found, x @ w.T

    _, found = measured(run, W, X, policy="fp16")
    assert found.stored["mul"] == inf  # although no output depends on it smoothly
    assert 65504 < found.peaks["mul"] < 1e7
    inside = [name for name in found.peaks if name != "mul"]
    assert inside
    assert max(found.peaks[name] for name in inside) > 6e6  # of the last turn
    assert found.stored["dot_general"] < inf
    assert not measured(run, W, X)[1].peaks


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("hidden", [-jnp.inf, float(jnp.finfo(jnp.float32).min)])
def test_masks_and_their_infinities_have_no_error(policy, hidden):
    keep = jnp.tril(jnp.ones((8, 16), bool))

    def run(w, x):
        h = x @ w
        added = jax.nn.softmax(h + jnp.where(keep, 0.0, hidden), -1)
        chosen = jax.nn.relu(jnp.where(keep, h, hidden))
        return (added + chosen) @ w

    _, found = measured(run, W, X, policy=policy)
    assert max(found.all.values()) < 1e-3


def checked(function, *args, bounded=()):
    sample = sample_of(function, *args)
    reference = Run(outputs(Exact(sample.program), sample))
    check_finite(sample, reference, bounded or reference.outputs)


def test_the_op_that_makes_nan_or_infinities_is_named():
    def bad(w, x):
        return jnp.log(x @ w - 1e3) @ w

    def late(w, x):
        def turn(h, row):
            return jnp.sqrt(h - 1.0) + 0 * row, jnp.sin(h)

        return lax.scan(turn, jnp.full(16, 2.5), x)[1] @ w

    def large(w, x):
        return jnp.exp(x * 1e4) + x @ w

    with pytest.raises(ToleranceError, match=r"has NaN .* by log \(%log\)") as caught:
        checked(bad, W, X)
    assert "test_sensitivity.py" in str(caught.value)
    with pytest.raises(ToleranceError, match=r"has NaN .* by sqrt"):
        checked(late, W, X)
    with pytest.raises(ToleranceError, match=r"infinities .* by exp"):
        checked(large, W, X)
    with pytest.raises(ToleranceError, match="has NaN in full precision already; give"):
        checked(lambda w, x: x @ w, W * jnp.nan, X)


def test_what_is_not_bounded_may_be_infinite():
    def run(w, x):
        return {"a": x @ w, "b": jnp.log(x * 0)}

    checked(run, W, X, bounded=("a",))
    with pytest.raises(ToleranceError, match="output b has infinities"):
        checked(run, W, X, bounded=("b",))


def test_a_function_without_float_outputs_is_refused():
    with pytest.raises(UnsupportedError, match="float outputs; this function gives no"):
        checked(lambda w, x: jnp.argmax(x @ w), W, X)


def test_an_op_without_a_derivative_is_named():
    def run(w, x):
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.sin, kind, x @ w) @ w

    def inside(w, x):
        return lax.map(lambda row: run(w, row), x)

    for function in (run, inside):
        with pytest.raises(
            UnsupportedError, match=r"pure_callback \(%.*test_sens.* differentiated"
        ):
            measured(function, W, X)


def test_nothing_is_printed_meanwhile(capfd):
    def run(w, x):
        jax.debug.print("seen {}", x.sum())
        return x @ w

    sample, _ = measured(run, W, X, policy="fp16")
    outputs(Exact(sample.program), sample)
    jax.effects_barrier()
    assert "seen" not in capfd.readouterr().out
