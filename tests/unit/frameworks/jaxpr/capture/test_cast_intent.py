"""Casts that a float32 trace lacks, put back from a trace in low precision."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import amprewrite
from amprewrite.frameworks.jaxpr.capture.cast_intent import Second, restore_casts
from amprewrite.frameworks.jaxpr.capture.trace import Tracer
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Program, Step, all_steps

FULL = jnp.float32
X = jnp.ones((4, 8))
W = jnp.ones((8, 8))


def both(function: Callable[..., Any], *args: Any) -> tuple[Program, Program]:
    tracer = Tracer(function)
    first = inline(tracer.trace(args, {}).closed)
    return first, inline(tracer.trace_low(args, {}, "bfloat16")[0])


def restored(function: Callable[..., Any], *args: Any) -> Program:
    return restore_casts(*both(function, *args), ("bfloat16", "float32"))


def chosen(program: Program) -> list[str]:
    return [step.chosen for step in all_steps(program.steps) if step.chosen]


def reader(program: Program, primitive: str) -> Step:
    return next(s for s in all_steps(program.steps) if s.primitive == primitive)


SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "astype": lambda x: x.astype(FULL),
    "jnp.astype": lambda x: jnp.astype(x, FULL),
    "convert_element_type": lambda x: lax.convert_element_type(x, FULL),
    "asarray": lambda x: jnp.asarray(x, FULL),
    "array": lambda x: jnp.array(x, dtype=FULL),
    "the dtype itself": FULL,
}


@pytest.mark.parametrize("cast", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_of_a_cast_is_put_back(cast: Callable[[Any], Any]) -> None:
    program = restored(lambda x: jnp.tanh(cast(x)) * 2, X)
    assert chosen(program) == ["pinned"]
    (opening,) = (step for step in program.steps if step.chosen)
    assert opening.operands in (program.inputs, ("copy",))
    assert reader(program, "tanh").operands == opening.results


def test_a_cast_back_follows() -> None:
    program = restored(lambda x: jnp.tanh(x.astype(FULL)).astype(x.dtype) * 2, X)
    assert chosen(program) == ["pinned", "follows"]
    assert reader(program, "mul").operands[0] == program.steps[2].results[0]


def test_only_the_readers_of_a_cast_read_it() -> None:
    program = restored(lambda x: jnp.tanh(x.astype(FULL)).astype(x.dtype) + x, X)
    add = reader(program, "add")
    assert add.operands[1] == program.inputs[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.mean(x) + jnp.sum(x) + jnp.var(x),
        jax.nn.softmax,
        lambda x: x * jnp.ones(8),
        lambda x: x + jnp.arange(8, dtype=FULL),
        lambda x: jnp.dot(x, W, preferred_element_type=FULL),
    ],
)
def test_what_jax_converts_by_itself_is_no_cast_of_the_model(
    function: Callable[..., Any],
) -> None:
    assert chosen(restored(function, X)) == []


def test_casts_inside_branches_are_put_back_where_they_stand() -> None:
    def function(x: Any) -> Any:
        return lax.cond(
            x[0, 0] > 0,
            lambda x: jnp.tanh(x.astype(FULL)).astype(x.dtype),
            lambda x: x + 1,
            x,
        )

    program = restored(function, X)
    (cond,) = (step for step in program.steps if step.bodies)
    plain, casting = cond.bodies
    assert [step.chosen for step in casting.steps if step.chosen] == [
        "pinned",
        "follows",
    ]
    assert not any(step.chosen for step in plain.steps)
    (leave,) = cond.leaves
    assert leave is not None
    assert leave.reads[1] == casting.steps[-1].results[0]


def test_a_branch_may_keep_other_values_for_its_derivative() -> None:
    """What a cast keeps is not kept where the value is low already."""

    def function(w: Any, x: Any) -> Any:
        def casting(x: Any) -> Any:
            return jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype) @ w

        return lax.cond(x[0, 0] > 0, casting, jnp.tanh, x).sum()

    gradient = jax.grad(function, (0, 1))
    first, second = both(gradient, W, X)
    one, other = (next(s for s in p.steps if s.bodies) for p in (first, second))
    assert one.leaves != other.leaves
    program = restore_casts(first, second, ("bfloat16", "float32"))
    assert next(s for s in program.steps if s.bodies).leaves == one.leaves
    by_weights, by_inputs = amprewrite.convert(gradient, "bf16")(W, X)
    assert (by_weights.shape, by_inputs.shape) == (W.shape, X.shape)


def test_a_carry_reads_the_cast_at_the_end_of_its_body() -> None:
    def turn(h: Any, x: Any) -> Any:
        wide = h.astype(FULL) * 2
        return wide.astype(h.dtype), wide + x.astype(FULL)

    program = restored(lambda x, xs: lax.scan(turn, x, xs), X[0], X)
    (scan,) = (step for step in program.steps if step.bodies)
    (body,) = scan.bodies
    assert [step.chosen for step in body.steps if step.chosen] == [
        "pinned",
        "follows",
        "pinned",
    ]
    carry, stacked = scan.leaves
    assert carry is not None
    assert stacked is not None
    follows = next(step for step in body.steps if step.chosen == "follows")
    assert carry.reads == follows.results
    assert stacked.reads == body.steps[-1].results


def test_programs_that_differ_are_matched_where_they_agree() -> None:
    """Bits of low numbers are drawn otherwise; what stands around them is found."""

    def function(key: Any, x: Any) -> Any:
        noise = jax.random.uniform(key, x.shape, x.dtype)
        return jnp.tanh((x + noise).astype(FULL)).astype(x.dtype) @ W.astype(x.dtype)

    first, second = both(function, jax.random.key(0), X)
    names = [[s.primitive for s in p.steps if s.primitive] for p in (first, second)]
    assert len(names[0]) != len(names[1])
    program = restore_casts(first, second, ("bfloat16", "float32"))
    assert chosen(program)[:1] == ["pinned"]
    assert reader(program, "tanh").operands[0] not in {
        s.results[0] for s in first.steps
    }


def test_names_stay_unique_and_the_rest_as_it_was() -> None:
    first, second = both(lambda x: jnp.tanh(x.astype(FULL)) + x.astype(FULL), X)
    program = restore_casts(first, second, ("bfloat16", "float32"))
    names = [step.name for step in all_steps(program.steps)]
    assert len(set(names)) == len(names)
    plain = [step for step in program.steps if not step.chosen]
    assert [s.eqn for s in plain] == [s.eqn for s in first.steps]
    assert program.inputs == first.inputs


def second_of(tracer: Tracer, trace: Callable[[], Any] | None = None) -> Second:
    def low() -> Any:
        return tracer.trace_low((X,), {}, "bfloat16")

    def casts() -> bool:
        return tracer.casts((X,), {})

    return Second(trace or low, casts, "bfloat16")


def test_a_function_that_casts_nothing_has_the_same_steps() -> None:
    tracer = Tracer(lambda x: jnp.tanh(x @ W))
    program = inline(tracer.trace((X,), {}).closed)
    found, notes = second_of(tracer).restore(program)
    assert (found.steps, found.outputs, notes) == (program.steps, program.outputs, ())


def test_a_jitted_function_may_cast_though_nothing_was_seen() -> None:
    """JAX runs it once for a signature, here before the conversion."""

    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.tanh(x.astype(FULL)).astype(x.dtype)

    def function(x: Any) -> Any:
        return inner(x) @ W.astype(x.dtype)

    jax.jit(function)(X)
    tracer = Tracer(lambda x: inner(x) * 2)
    program = inline(tracer.trace((X,), {}).closed)
    found, notes = second_of(tracer).restore(program)
    assert (chosen(found), notes) == (["pinned", "follows"], ())


def test_a_second_trace_that_fails_is_told() -> None:
    def picky(x: Any) -> Any:
        if x.dtype != FULL:
            msg = "only float32 here"
            raise TypeError(msg)
        return x.astype(FULL) * 2

    tracer = Tracer(picky)
    program = inline(tracer.trace((X,), {}).closed)
    assert tracer.casts((X,), {})
    found, (note,) = second_of(tracer).restore(program)
    assert found is program
    assert "failed (TypeError: only float32 here)" in note
    assert "amprewrite.full_precision" in note


BODIES: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "checkpoint": jax.checkpoint,
    "scan": lambda f: (
        lambda x: lax.scan(lambda h, _: (f(h), None), x, None, length=2)[0]
    ),
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, h: f(h), x),
    "cond": lambda f: lambda x: lax.cond(x[0, 0] > 0, f, lambda h: h, x),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_jax_has_traced_before_is_traced_again(
    body: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
) -> None:
    def inner(x: Any) -> Any:
        return (jnp.tanh(x.astype(FULL)) * 2).astype(x.dtype)

    wrapped = body(inner)
    for _ in range(2):
        tracer = Tracer(lambda x: wrapped(x) @ W.astype(x.dtype))
        program = inline(tracer.trace((X,), {}).closed)
        found, _ = second_of(tracer).restore(program)
        assert {"pinned", "follows"} == set(chosen(found))


def test_a_cast_behind_what_a_function_closes_over_is_told() -> None:
    tracer = Tracer(lambda x: jnp.tanh((x @ W).astype(FULL)) * 2)
    program = inline(tracer.trace((X,), {}).closed)
    found, (note,) = second_of(tracer).restore(program)
    assert chosen(found) == []
    assert "a value it closes over is float32" in note
    assert "pass it as an argument" in note
    tracer = Tracer(lambda x: jnp.tanh(x.astype(FULL)).astype(FULL) * 2)
    program = inline(tracer.trace((X,), {}).closed)
    assert second_of(tracer).restore(program)[1] == ()


def test_a_second_trace_that_fails_is_told_though_no_cast_was_seen() -> None:
    def inner(x: Any) -> Any:
        return jnp.tanh(x.astype(FULL)).astype(x.dtype)

    jitted = jax.jit(inner)
    jitted(X)  # JAX does not run it again

    def failing() -> Any:
        msg = "not in low"
        raise TypeError(msg)

    tracer = Tracer(lambda x: jitted(x) * 2)
    program = inline(tracer.trace((X,), {}).closed)
    found, (note,) = second_of(tracer, trace=failing).restore(program)
    assert found is program
    assert "failed (TypeError: not in low)" in note


def test_a_function_that_refuses_low_arrays_by_their_dtype_casts_none_of_them() -> None:
    seen: list[Any] = []

    def refusing(x: Any) -> Any:
        msg = f"not in {x.dtype}"
        raise TypeError(msg)

    def function(x: Any) -> Any:
        seen.append(x.dtype)
        return jnp.tanh(x) if x.dtype == FULL else refusing(x)

    tracer = Tracer(function)
    program = inline(tracer.trace((X,), {}).closed)
    assert second_of(tracer).restore(program) == (program, ())
    assert seen == [FULL, jnp.bfloat16, FULL]


def test_a_cast_of_a_low_value_is_in_both_programs() -> None:
    def function(x: Any) -> Any:
        low = x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16)
        return jnp.tanh(low.astype(FULL)) * 2

    assert chosen(restored(function, X)) == []
