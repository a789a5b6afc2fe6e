"""The plan says every conversion that a program runs."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from tests.jax_programs import checked_jaxpr, equations, normal, weight

WIDTH = 16
PARAMS = {
    **{name: weight(WIDTH, WIDTH, seed) for seed, name in enumerate("qkvo")},
    "up": weight(WIDTH, 64, 7),
    "down": weight(64, WIDTH, 8),
    "scale": jnp.ones(WIDTH),
}
X = normal(2, 8, WIDTH)


def norm(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def block(p, x):
    held = norm(x, p["scale"])
    q, k, v = held @ p["q"], held @ p["k"], held @ p["v"]
    operand_rule = jax.nn.softmax(jnp.einsum("bnd,bmd->bnm", q, k) / 4)
    x = x + jnp.einsum("bnm,bmd->bnd", operand_rule, v) @ p["o"]
    return x + jax.nn.gelu(norm(x, p["scale"]) @ p["up"]) @ p["down"]


def looped(p, x):
    return lax.scan(lambda x, _: (jnp.tanh(block(p, x)), None), x, None, length=2)[0]


def branched(p, x):
    return lax.cond(x.sum() > 0, lambda x: block(p, x), lambda x: x @ p["q"], x)


def written(p, x):
    low = x.astype(jnp.bfloat16) @ p["q"].astype(jnp.bfloat16)
    return block(p, low.astype(jnp.float32))


PROGRAMS = (block, looped, branched, written)


def planned(plan):
    """Return how many conversions a plan has.

    Each use has its own, so that the gradients of several uses add up in full
    precision (XLA merges them), and each accumulator that is rounded has one.
    """
    uses = sum(len(cast.uses) for cast in plan.casts)
    sums = [d for d in plan.decisions if d.accumulator]
    kept = [d for d in plan.decisions if d.native == "convert_element_type"]
    written = sum(bool(d.operands) for d in kept)  # others are of numbers, done now
    return uses + written + sum((d.accumulator,) != d.results for d in sums)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("placement", ["promote", "paint", "optimal"])
@pytest.mark.parametrize("policy", ["bf16", "fp16", "bf16-accumulate"])
def test_a_program_converts_what_its_plan_says(program, placement, policy):
    converted = amprewrite.convert(
        program, policy, args=(PARAMS, X), placement=placement, target="compiled"
    )
    closed = checked_jaxpr(converted, PARAMS, X)
    made = [e for e in equations(closed) if e.primitive.name == "convert_element_type"]
    assert len(made) == planned(converted.plan)


@pytest.mark.parametrize("placement", ["promote", "optimal"])
def test_a_plan_for_a_compiler_is_applied(placement):
    """Its casts count what they move, which is nothing inside other kernels."""
    args = (PARAMS, X)
    plan = amprewrite.inspect(block, args=args, placement=placement, target="compiled")
    converted = amprewrite.convert(block, plan=plan, args=args)
    assert converted.plan == plan
    moved = [cast.bytes for cast in plan.runtime_casts]
    assert 0 in moved
    assert plan.cost.cast_bytes == sum(moved)
