"""A policy that lowers and promotes: each class of op, with each dtype of an input."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite

LOW, FULL = "bfloat16", "float32"
KEY = jax.random.key(0)
X = 3 * jax.random.normal(KEY, (8, 64))
W = jax.random.normal(KEY, (64, 64))
CONTRACTED = (((1,), (0,)), ((), ()))


@pytest.fixture
def policy(tmp_path):
    file = tmp_path / "both.toml"
    file.write_text('extends = "bf16"\n[promotion]\nsystem = "jax"\n')
    return file


def dot(x, w):
    return lax.dot_general(x, w, CONTRACTED)


PROGRAMS = {
    "lax.dot_general": (dot, "dot_general", LOW),
    "matmul": (lambda x, w: x @ w, "dot_general", LOW),
    "deny": (lambda x, w: lax.atan2(x, w[:8]), "atan2", FULL),
    "concatenate": (lambda x, w: lax.concatenate([dot(x, w), x], 0), "", ""),
    "gradient": (
        lambda x, w: jax.grad(lambda w: (dot(x, w) ** 2).sum())(w),
        "dot_general",
        LOW,
    ),
}


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("placement", ["promote", "optimal"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_is_of_its_class_whatever_dtype_comes_in(name, dtype, placement, policy):
    program, native, wanted = PROGRAMS[name]
    args = (X.astype(dtype), W)
    converted = amprewrite.convert(program, policy, args=args, placement=placement)
    found = converted(*args)
    expected = amprewrite.convert(program, "promote", args=args)(*args)
    assert found.dtype == expected.dtype
    assert jnp.linalg.norm(found - expected) <= 2e-2 * jnp.linalg.norm(expected)
    cost = converted.plan.cost
    assert cost.lower_bound in (None, cost.total_bytes)
    if wanted and placement == "promote":
        decisions = converted.plan.decisions
        assert {d.precision for d in decisions if d.native == native} == {wanted}


@pytest.mark.parametrize("dtype", [LOW, FULL])
def test_a_promote_op_is_as_wide_as_what_reaches_it(dtype, policy):
    def program(x, w):
        return dot(lax.mul(dot(x, w), x), w)

    plan = amprewrite.inspect(program, policy, args=(X.astype(dtype), W))
    assert plan.by_op["mul"].precision == dtype


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_the_promoted_dtype_of_float64_is_not_lowered(policy):
    with jax.enable_x64(True):
        args = (X.astype("float64"), W)
        converted = amprewrite.convert(dot, policy, args=args)
        assert converted(*args).dtype == "float64"
        assert converted.plan.by_op["dot_general"].precision == "float64"
