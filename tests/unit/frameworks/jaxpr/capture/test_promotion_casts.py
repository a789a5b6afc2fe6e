"""The casts of promotion are taken out of a program, and their readers remember."""

from dataclasses import replace

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite.dtypes import Processor
from amprewrite.frameworks.jaxpr.capture.promotion import Promoter, promoting, take_out
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Number, all_steps

LOW, FULL = jnp.ones(2, "bfloat16"), jnp.ones(2, "float32")


def program(function, *args, states=()):
    with promoting(Processor("jax")):
        closed = jax.make_jaxpr(function)(*args)
    traced = inline(closed)
    named = tuple((output, traced.inputs[index]) for output, index in states)
    return replace(traced, states=named)


def primitives(found):
    return [step.primitive for step in all_steps(found.steps)]


def test_a_reader_remembers_what_was_cast():
    before = program(lax.add, LOW, FULL)
    assert primitives(before) == ["convert_element_type", "add"]
    (step,) = take_out(before).steps
    assert step.operands == before.inputs
    assert step.wants == ("float32", "")


def test_a_number_is_cast_at_once():
    def function(x):
        return lax.add(x, jnp.float32(0.5).astype("bfloat16")[None]) + lax.mul(x, 2.0)

    found = take_out(program(function, LOW))
    (step,) = (s for s in found.steps if s.primitive == "mul")
    (number,) = (atom for atom in step.operands if isinstance(atom, Number))
    assert number.dtype == "bfloat16"
    assert step.wants == ()


def test_a_cast_of_the_user_stays():
    def function(x, y):
        return lax.add(x.astype("float32"), y)

    before = program(function, LOW, FULL)
    assert take_out(before) is before or primitives(take_out(before)) == [
        "convert_element_type",
        "add",
    ]


def test_a_boundary_remembers_too():
    def function(x, y):
        return lax.scan(lambda c, _: (c * y, None), x, None, 2)[0]

    found = take_out(program(function, LOW, FULL))
    (scan,) = (step for step in found.steps if step.primitive == "scan")
    (leave,) = (boundary for boundary in scan.leaves if boundary)
    assert leave.wants == ("bfloat16",)
    casts = [s for s in all_steps(found.steps) if s.primitive == "convert_element_type"]
    assert all(step.scopes == () for step in casts)  # those of jax.numpy are its own


def test_a_checkpoint_reads_outer_values_and_remembers_inside():
    found = take_out(program(jax.checkpoint(lax.add), LOW, FULL))
    (add,) = (s for s in all_steps(found.steps) if s.primitive == "add")
    assert add.wants == ("float32", "")


def test_a_backward_cast_is_no_promotion():
    def function(x, y):
        return jax.grad(lambda x: lax.mul(x, y).sum())(x) * 2

    found = take_out(program(function, LOW, FULL))
    casts = [s for s in all_steps(found.steps) if s.primitive == "convert_element_type"]
    assert [str(s.eqn.outvars[0].aval.dtype) for s in casts] == ["bfloat16"]


def test_the_last_cast_of_a_state_is_taken_out():
    def function(x):
        return (x.astype("float32") * 2).astype("bfloat16"), x

    before = program(function, LOW, states=[(0, 0)])
    found = take_out(before)
    assert found.avals[str(found.outputs[0])].dtype == "float32"
    assert len(found.steps) == len(before.steps) - 1
    without = replace(before, states=())
    assert take_out(without).outputs == without.outputs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((made := (x.astype("float32") * 2).astype("bfloat16")), made + 1),
        lambda x: (x.astype("float32") * 2, x),
        lambda x: (jnp.arange(2).astype("bfloat16"), x),
        lambda x: (x, x),
    ],
)
def test_other_casts_at_the_end_stay(function):
    before = program(function, LOW, states=[(0, 0)])
    assert take_out(before).outputs == before.outputs
    assert primitives(take_out(before)) == primitives(before)


def test_a_cast_that_is_handed_on_stays():
    def cast(x):
        return Promoter(Processor("jax")).cast(x, "float32")

    before = program(lambda x: (cast(x), x), LOW)
    assert primitives(take_out(before)) == primitives(before)
    shared = program(jax.checkpoint(lambda x: cast(x * 2)), LOW)
    found = take_out(shared)
    assert primitives(found) == primitives(shared)
