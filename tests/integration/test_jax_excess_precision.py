"""Programs that jump where values are equal, compiled as XLA does it by default.

XLA keeps excess precision: it may read a low value as it was before it was rounded.
What two ops read of one value then differs, and a comparison of them is never true.
"""

from itertools import product
from typing import Any, NamedTuple

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from tests.fuzzing import seeds
from tests.jax_programs import gradient_of, normal, relative_error, weight

pytestmark = [
    pytest.mark.usefixtures("xla_passes"),
    pytest.mark.filterwarnings("ignore:rewritten 0 of"),  # pointwise programs
]

W = weight(16, 16)
X = normal(8, 16, seed=1)
Y = normal(8, 16, seed=2)

TIMES = 8
"""How much larger an error may be than that of rounded arguments and one rounding."""

ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
LOW = {"bf16": "bfloat16", "fp16": "float16"}


class Parts(NamedTuple):
    """What the programs read: ``h`` is made low where a solver decides."""

    h: Any
    w: Any
    x: Any
    y: Any


def windows(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")


def routed(p):
    chosen = p.h >= lax.top_k(p.h, 3)[0][:, -1:]
    return 8 * (jax.nn.softmax(p.h) * chosen) @ p.w


def scanned(p):
    def turn(carry, given):
        made = jnp.maximum(carry * given + 0.1 * given, 0.5 * given)
        return made, made * given

    last, stacked = lax.scan(turn, p.h, jnp.stack([p.x, p.y, p.x]))
    return last @ p.w + stacked.sum(0)


def branched(p):
    branches = (lambda h: jnp.maximum(h, p.y), lambda h: 2 * jnp.maximum(h, p.x))
    return lax.cond(p.x[0, 0] > 0, *branches, p.h) @ p.w


def picked(p):
    indices = jnp.argmax(p.h, axis=-1)[:, None]
    return jnp.take_along_axis(p.h, indices, axis=-1) * (p.x @ p.w)


@jax.custom_vjp
def most(h, k):
    return jnp.maximum(h, k)


def most_forward(h, k):
    made = jnp.maximum(h, k)
    return made, (h, k, made)


def most_backward(kept, tangent):
    h, k, made = kept
    return tangent * (h == made), tangent * (k == made)


most.defvjp(most_forward, most_backward)


@jax.custom_vjp
def row(x, y):
    return (x * y).max(-1, keepdims=True)


def row_forward(x, y):
    held = x * y
    made = held.max(-1, keepdims=True)
    return made, (x, y, held, made)


def row_backward(kept, tangent):
    x, y, held, made = kept
    chosen = (held == made) * tangent
    return chosen * y, chosen * x


row.defvjp(row_forward, row_backward)


PROGRAMS = {
    "maximum": lambda p: jnp.maximum(p.h, 0.5 * p.x) @ p.w,
    "pointwise maximum": lambda p: jnp.maximum(p.h, 0.5 * p.x),
    "minimum": lambda p: jnp.minimum(p.h, 0.7 * p.y) * p.x,
    "clip": lambda p: jnp.clip(p.h, -jnp.abs(p.x) / 2, jnp.abs(p.y) / 2) @ p.w,
    "clip to numbers": lambda p: jnp.clip(p.h, -0.3, 0.3) @ p.w,
    "row maximum": lambda p: p.h.max(-1, keepdims=True) * (p.x @ p.w),
    "column minimum": lambda p: p.h.min(0) * p.y,
    "divided by the largest": lambda p: (p.h / jnp.abs(p.h).max()) @ p.w,
    "subtracted maximum": lambda p: jnp.exp(p.h - p.h.max(-1, keepdims=True)) @ p.w,
    "mask of the largest": lambda p: (
        (p.h == p.h.max(-1, keepdims=True)) * p.h * (p.x @ p.w)
    ),
    "difference to the largest": lambda p: (
        (p.h - p.h.max(-1, keepdims=True) >= 0) * p.h * (p.x @ p.w)
    ),
    "argmax": picked,
    "sort": lambda p: jnp.sort(p.h, -1) * p.y,
    "median": lambda p: jnp.median(p.h, -1)[:, None] * (p.x @ p.w),
    "top_k": lambda p: lax.top_k(p.h, 3)[0] * p.y[:, :3],
    "experts": routed,
    "cummax": lambda p: lax.cummax(p.h, 1) @ p.w,
    "pool": lambda p: windows(p.h) * p.y[:, :8],
    "segment_max": lambda p: (
        jax.ops.segment_max(p.h, jnp.array([0, 1, 0, 1, 2, 2, 3, 3]), 4) @ p.w
    ),
    "relu": lambda p: jax.nn.relu(p.h) @ p.w,
    "maximum with zero": lambda p: jnp.maximum(p.h, 0) @ p.w,
    "where": lambda p: jnp.where(p.h > 0.5 * p.x, p.h, 0.5 * p.x) @ p.w,
    "abs": lambda p: jnp.abs(p.h) @ p.w,
    "sign": lambda p: (p.h * jnp.sign(p.h)) @ p.w,
    "floor": lambda p: (4 * p.h - jnp.floor(4 * p.h)) @ p.w,
    "round": lambda p: (4 * p.h - jnp.round(4 * p.h)) @ p.w,
    "integers": lambda p: (4 * p.h - (4 * p.h).astype(jnp.int32)) @ p.w,
    "remainder": lambda p: jnp.remainder(4 * p.h, 1.0) @ p.w,
    "custom maximum": lambda p: most(p.h, 0.5 * p.x) @ p.w,
    "custom maximum of a row": lambda p: row(p.h, p.y) * (p.x @ p.w),
    "scan": scanned,
    "cond": branched,
    "checkpoint": lambda p: (
        jax.checkpoint(lambda h: jnp.maximum(h, 0.5 * p.x))(p.h) @ p.w
    ),
    "vmap": lambda p: jax.vmap(jnp.maximum)(p.h, 0.5 * p.x) @ p.w,
}


@pytest.fixture(params=sorted(PROGRAMS))
def function(request):
    """A program that reads a sum of low products; its terms fit one fusion of XLA."""

    chosen = PROGRAMS[request.param]

    def program(w, x, y):
        return chosen(Parts(jnp.tanh(x @ w) + 0.1 * x * y, w, x, y))

    return program


def check(function, policy, placement, target, given):
    gradient = gradient_of(function)
    expected = jax.jit(gradient)(W, X, Y)
    rounded = [a.astype(LOW[policy]).astype(a.dtype) for a in (W, X, Y)]
    coarse = relative_error(jax.jit(gradient)(*rounded), expected)

    def convert(made):
        return amprewrite.convert(made, policy, placement=placement, target=target)

    inside = given == "inside"
    found = convert(gradient) if inside else gradient_of(convert(function))
    error = relative_error(jax.jit(found)(W, X, Y), expected)
    assert error <= TIMES * (coarse + ROUNDING[policy])


@pytest.mark.parametrize("given", ["inside", "of the converted"])
def test_gradients_are_those_of_full_precision(function, given):
    check(function, "bf16", "optimal", "compiled", given)


WAYS = list(
    product(
        ("bf16", "fp16"),
        ("promote", "paint", "optimal"),
        ("eager", "compiled"),
        ("inside", "of the converted"),
    )
)
"""Policy, placement, target, and where the gradient is taken."""

SOME = [
    (name, WAYS[(number + 7 * seed) % len(WAYS)])
    for number, name in enumerate(PROGRAMS)
    for seed in seeds(2, len(WAYS))
]
"""Two ways of each program, in turn; in a long run all."""


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize(("function", "way"), SOME, indirect=["function"])
def test_gradients_of_every_way(function, way):
    check(function, *way)


def test_a_maximum_of_products_has_its_gradient():
    gradient = gradient_of(lambda x, y: jnp.maximum(x * y, 0.5 * x))
    found = amprewrite.convert(gradient, placement="optimal", target="compiled")
    assert relative_error(jax.jit(found)(X, Y), gradient(X, Y)) < TIMES * 2.0**-8


def test_results_can_be_compared_by_who_gets_them():
    def function(x, y):
        held = x * y + 0.1 * x
        return held, held.max(-1, keepdims=True)

    converted = amprewrite.convert(function, placement="optimal", target="compiled")

    @jax.jit
    def largest(x, y):
        held, most = converted(x, y)
        return (held == most).sum(-1)

    assert (largest(X, Y) >= 1).all()


def test_values_that_no_comparison_reads_are_cast_plainly():
    def function(w, x, y):
        return jnp.tanh(x @ w) * y @ w

    converted = amprewrite.convert(gradient_of(function), args=(W, X, Y))
    assert "reduce_precision" not in str(jax.make_jaxpr(converted)(W, X, Y))
