"""One walk runs every step and body of a program; consumers override its hooks."""

import numpy as np
import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from amprewrite.frameworks.jaxpr.compat.equations import scan_counts
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Number, all_steps

W = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)) / 3, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(5, 8)), jnp.float32)
ROWS = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)), jnp.float32)
SQUARE = jnp.eye(4)
DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@jax.custom_vjp
def halved(x):
    return jnp.tanh(x)


halved.defvjp(lambda x: (halved(x), x), lambda x, g: (g * 0.5 * jnp.cos(x),))


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


tripled.defjvp(lambda p, t: (tripled(*p), t[0] * 3))


def turned(x):
    def turn(carry, row):
        return jnp.tanh(carry @ W + row), carry.sum()

    return lax.scan(turn, x[0], x, reverse=True)


PROGRAMS = {
    "scan": turned,
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ W)), (0, x)
    ),
    "batched": jax.vmap(
        lambda row: lax.while_loop(lambda r: r.sum() < 3, lambda r: r + 1, row)
    ),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda y: y @ W, lambda y: y * 2.0, x),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(y @ W))(x) + x,
    "jit": lambda x: jax.jit(lambda y, z: y @ W + z, out_shardings=DEVICE)(x, x),
    "vjp": lambda x: halved(x @ W) + 1,
    "jvp": lambda x: tripled(x @ W) + 1,
    "number": lambda x: (x + 1, 2.0, jnp.float32(3)),
}


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_without_hooks_is_the_same_program(function):
    closed = jax.make_jaxpr(function)(X)
    executor = ProgramExecutor(inline(closed))
    again = jax.make_jaxpr(lambda x: executor([x]))(X)
    jex.check_jaxpr(again.jaxpr)
    assert [str(aval) for aval in again.out_avals] == list(map(str, closed.out_avals))
    for value, expected in zip(
        executor([X]), jax.tree.leaves(function(X)), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("function", [PROGRAMS["vjp"], PROGRAMS["jvp"]])
def test_rules_of_derivatives_stay(function):
    executor = ProgramExecutor(inline(jax.make_jaxpr(function)(X)))
    derived = jax.grad(lambda x: executor([x])[0].sum())(X)
    np.testing.assert_allclose(derived, jax.grad(lambda x: function(x).sum())(X))


class Shown(ProgramExecutor):
    """Executor that records what its hooks are given."""

    in_place = frozenset(("checkpoint", "remat", "remat2", "custom_vjp_call"))

    def __init__(self, program):
        super().__init__(program)
        self.reads, self.results, self.passed = [], [], []

    def on_read(self, op, index, name, env):
        self.reads.append((op, index, name))
        return super().on_read(op, index, name, env)

    def on_result(self, step, name, value):
        self.results.append(name)
        return super().on_result(step, name, value)

    def on_pass(self, boundary, value):
        self.passed.append((boundary.makes, isinstance(value, Number)))
        return super().on_pass(boundary, value)

    def branch_of(self, step, env):
        return int(self.get(step.operands[0], env))


def test_hooks_see_every_read_and_result_of_bodies_in_place():
    def function(x):
        y = lax.cond(x[0, 0] > 0, lambda y: y * 2.0, jnp.cos, x)
        return halved(jax.checkpoint(lambda z: z - y)(x))

    program = inline(jax.make_jaxpr(function)(X))
    shown = Shown(program)
    np.testing.assert_array_equal(shown([X])[0], function(X))
    made = {name for step in all_steps(program.steps) for name in step.results}
    branch = "mul" if X[0, 0] < 0 else "cos"
    assert set(shown.results) >= made - {"mul", "cos"}
    assert branch not in shown.results
    assert ("sub", 0, program.inputs[0]) in shown.reads
    assert {name for name, _ in shown.passed} >= {"custom_vjp_call", "cond"}


def test_loops_can_run_in_another_way():
    class Counting(ProgramExecutor):
        turns = 0

        def on_loop(self, step, test, turn, start):
            assert step.primitive == "while"
            while test(start):
                start = turn(start)
                self.turns += 1
            return start

        def on_scan(self, step, turn, carry, slices):
            self.turns += step.eqn.params["length"]
            return super().on_scan(step, turn, carry, slices)

    for function, turns in ((PROGRAMS["while"], 3), (turned, 5)):
        executor = Counting(inline(jax.make_jaxpr(function)(X)))
        results = executor([X])
        assert executor.turns == turns
        for value, expected in zip(results, jax.tree.leaves(function(X)), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-6)


# --- by a plan -----------------------------------------------------------------------


def equations(function, *args):
    """Return the equations of the converted function by primitive, outermost only."""
    jaxpr = jax.make_jaxpr(amprewrite.convert(function))(*args)
    return {eqn.primitive.name: eqn for eqn in jaxpr.eqns}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_keeps_its_settings(reverse: bool) -> None:  # noqa: FBT001  # a parameter
    def function(xs, h):
        def turn(h, x):
            h = jnp.tanh(h @ W + x)
            return h, h

        return jax.lax.scan(turn, h, xs, reverse=reverse, unroll=2)

    eqn = equations(function, X, X[0])["scan"]
    assert eqn.params["reverse"] is reverse
    assert eqn.params["unroll"] == 2
    assert eqn.params["length"] == 5
    inner = str(eqn.params["jaxpr"])
    assert "bf16[8,8]" in inner
    carry = eqn.params["jaxpr"].in_avals[scan_counts(eqn)[0]]
    assert carry.dtype == jnp.float32


def test_a_checkpoint_keeps_its_policy() -> None:
    policy = jax.checkpoint_policies.dots_saveable
    kept = jax.checkpoint(lambda x: jnp.tanh(x @ W), policy=policy, prevent_cse=False)
    eqn = next(
        e
        for e in jax.make_jaxpr(amprewrite.convert(lambda x: kept(x) * 2))(X).eqns
        if "policy" in e.params
    )
    assert eqn.params["policy"] is policy
    assert eqn.params["prevent_cse"] is False
    assert "bf16" in str(eqn.params["jaxpr"])


def test_branches_agree_on_what_they_give() -> None:
    def function(x, flag):
        return jax.lax.cond(flag, lambda x: x @ W, jnp.exp, x)

    eqn = equations(function, X, True)["cond"]
    first, second = (branch.out_avals for branch in eqn.params["branches"])
    assert [a.dtype for a in first] == [a.dtype for a in second] == [jnp.float32]


def test_a_while_loop_runs_until_its_test_fails() -> None:
    def function(x):
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ W)), (0, x)
        )

    count, found = amprewrite.convert(function)(X)
    _, wanted = function(X)
    assert int(count) == 3
    assert jnp.linalg.norm(found - wanted) < 2e-2 * jnp.linalg.norm(wanted)


def test_a_jit_that_fixes_shardings_is_kept() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    inner = jax.jit(lambda x, y: (x @ W) * y, out_shardings=sharding)
    found = equations(lambda x: inner(x, x) + 1, X)
    assert found["jit"].params["out_shardings"] == (sharding,)
    assert "bf16" in str(found["jit"].params["jaxpr"])
    plain = equations(lambda x: jax.jit(jnp.dot)(x, W) + 1, X)
    assert "jit" not in plain


def avals(function, *args):
    jaxpr = jax.make_jaxpr(amprewrite.convert(function))(*args)
    return next(e for e in jaxpr.eqns if e.primitive.name == "scan")


def test_slices_and_results_pass_low_and_the_carry_full() -> None:
    def function(xs, h):
        low = jnp.tanh(xs @ SQUARE)  # made low before the loop

        def turn(h, x):
            return h + x.sum(), jnp.tanh(x @ SQUARE)

        last, all_ = jax.lax.scan(turn, h, low)
        return last, all_ @ SQUARE

    eqn = avals(function, jnp.ones((3, 2, 4)), jnp.float32(0))
    made = [str(a.dtype) for a in eqn.params["jaxpr"].out_avals]
    read = [str(a.dtype) for a in eqn.params["jaxpr"].in_avals]
    assert made == ["float32", "bfloat16"]
    assert read[-1] == "bfloat16"


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_numbers_pass_as_they_are() -> None:
    def function(x):
        def turn(h, _):
            return h * 2 + 1, h

        return jax.lax.scan(turn, np.float32(3), x)

    last, all_ = amprewrite.convert(function)(jnp.ones(4))
    assert float(last) == 63
    np.testing.assert_array_equal(all_, [3, 7, 15, 31])


def test_an_identity_with_a_rule_is_not_the_value_itself() -> None:
    @jax.custom_jvp
    def damped(x):
        return x

    @damped.defjvp
    def _(primals, tangents):
        return primals[0], tangents[0] * 0.25

    def function(x):
        h = x @ W
        return (damped(h) * 3).sum() + h.sum()

    wanted = jax.grad(function)(ROWS)
    found = jax.grad(amprewrite.convert(function))(ROWS)
    assert jnp.linalg.norm(found - wanted) < 1e-2 * jnp.linalg.norm(wanted)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_is_called_with_the_dtypes_it_was_traced_with(kind: str) -> None:
    seen: list[str] = []

    def value(h):
        return jnp.maximum(h @ W, 0)

    if kind == "jvp":
        custom = jax.custom_jvp(value)

        @custom.defjvp
        def _(primals, tangents):
            seen.extend(str(x.dtype) for x in (*primals, *tangents))
            return value(primals[0]), tangents[0] @ W

    else:
        custom = jax.custom_vjp(value)

        def forward(h):
            seen.append(str(h.dtype))
            return value(h), h

        def backward(h, cotangent):
            seen.extend((str(h.dtype), str(cotangent.dtype)))
            return (cotangent @ W.T,)

        custom.defvjp(forward, backward)

    def function(x):
        return custom(jnp.tanh(x @ W)).sum()

    converted = amprewrite.convert(function)
    wanted, found = jax.grad(function)(ROWS), jax.grad(converted)(ROWS)
    text = str(jax.make_jaxpr(jax.grad(converted))(ROWS))
    assert set(seen) == {"float32"}
    assert "bf16" in text
    assert jnp.linalg.norm(found - wanted) < 2e-2 * jnp.linalg.norm(wanted)
