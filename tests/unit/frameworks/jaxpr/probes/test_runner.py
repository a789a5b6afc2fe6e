"""Functions are run on arrays, eagerly or compiled; gradients have names."""

from dataclasses import replace
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from amprewrite.frameworks.jaxpr.function.pure_function import prepared_of, subject_of
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.probes.runner import (
    PATIENCE,
    Runner,
    one_by_one,
    run_ending,
    run_planned,
    to_array,
)
from amprewrite.frameworks.jaxpr.probes.tolerance import sample_of
from amprewrite.measure.runs import Call
from amprewrite.measure.tolerance import without_eight_bits
from tests.unit.frameworks.jaxpr.probes.test_sensitivity import (
    sample_of as whole_sample,
)

X = jnp.arange(6.0).reshape(2, 3)


def both(x, count):
    return {"z": x * 2, "a": x.argmax(-1), "key": jax.random.key(7), "n": count}


@pytest.mark.parametrize("jitted", [False, True])
def test_a_run_has_floats_others_and_dtypes(jitted):
    run = Runner((X, np.int32(3)), ("x", "count")).run(both, jitted=jitted)
    assert list(run.outputs) == ["z"]
    np.testing.assert_array_equal(run.outputs["z"], np.arange(6.0).reshape(2, 3) * 2)
    assert set(run.others) == {"a", "key", "n"}
    assert run.others["key"].dtype == np.uint32
    assert run.dtypes["a"] == "int32"
    assert run.gradients == {}


def test_outputs_keep_their_order():
    run = Runner((X,), ("x",)).run(lambda x: [x] * 11, jitted=True)
    assert list(run.outputs) == [str(i) for i in range(11)]


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_gradients_are_those_of_the_loss_without_its_scale(scale):
    runner = Runner((X, np.int32(3)), ("x", "count"), (0,), scale)
    run = runner.run(both, jitted=False)
    target = np.random.default_rng(3).standard_normal(
        (2, 3)
    )  # JAX sorts keys: z is last
    wanted = 2 * (np.asarray(X) * 2 - target) * 2 / 6
    assert list(run.gradients) == ["x"]
    np.testing.assert_allclose(run.gradients["x"], wanted, rtol=1e-5, atol=1e-7)


def test_without_float_outputs_gradients_are_zero():
    run = Runner((X,), ("x",), (0,)).run(lambda x: x.argmax(), jitted=True)
    np.testing.assert_array_equal(run.gradients["x"], 0)


def test_arrays_are_float64_and_complex_ones_are_pairs():
    assert to_array(jnp.ones(2, jnp.bfloat16)).dtype == np.float64
    np.testing.assert_array_equal(to_array(jnp.array([1 + 2j])), [[1.0, 2.0]])


TRAINED = {0: "w", 1: "v"}


def model(w: Any, v: Any, x: Any) -> Any:
    return jnp.tanh(x @ w) @ v


def test_switches_give_the_gradients_of_plans_with_one_contraction_in_8_bits() -> None:
    draw = np.random.default_rng(0).standard_normal
    args = tuple(jnp.asarray(draw(s, np.float32)) for s in ((4, 4), (4, 4), (2, 4)))
    converted = amprewrite.convert(model, "simulate e4m3/e5m2", args=args)
    call = Call(args, {})
    prepared, subject = prepared_of(converted, call), subject_of(model, call)
    assert prepared is not None
    graph = prepared.graph
    sample = sample_of(prepared.program, graph, subject.arrays, subject.result)
    found = dict(one_by_one(prepared, sample, TRAINED))
    assert len(found) == 3
    seen: list[Any] = []
    for op, gradients in found.items():
        plan = without_eight_bits(prepared.plan, op)
        context = replace(prepared, plan=plan)

        def written(program: Any, inputs: list[Any], context: Any = context) -> Any:
            return Writer(replace(context, program=program))(inputs)

        wanted = run_planned(sample, written, TRAINED).gradients
        assert gradients.keys() == wanted.keys() == {"w", "v"}
        for name, array in wanted.items():
            np.testing.assert_allclose(gradients[name], array, rtol=1e-5, atol=1e-6)
        seen.append(gradients["w"])
    assert not np.allclose(seen[0], seen[1], rtol=1e-3)


def test_a_run_without_trained_arrays_has_no_gradients() -> None:
    args = tuple(jnp.ones((2, 2)) for _ in range(3))
    converted = amprewrite.convert(model, "off", args=args)
    call = Call(args, {})
    prepared, subject = prepared_of(converted, call), subject_of(model, call)
    assert prepared is not None
    graph = prepared.graph
    sample = sample_of(prepared.program, graph, subject.arrays, subject.result)

    def written(program: Any, inputs: list[Any]) -> Any:
        return Writer(replace(prepared, program=program))(inputs)

    found = run_planned(sample, written)
    assert not found.gradients
    (output,) = found.outputs.values()
    np.testing.assert_allclose(output, model(*args), rtol=1e-6)


class Ending(Exact):
    """Executor in full precision whose loops all end."""

    def __init__(self, program: Any, iterations: Any) -> None:
        super().__init__(program)
        self.iterations = iterations

    def on_loop(self, step: Any, test: Any, turn: Any, start: list[Any]) -> Any:
        if step.name not in self.iterations:
            return super().on_loop(step, test, turn, start)
        return run_ending(test, turn, start, self.iterations[step.name])


def counted(step, limit):
    def go(state):
        return state[0] + step, state[1] + 1

    return lax.while_loop(lambda s: s[0] < limit, go, (step * 0, 0))


@pytest.mark.parametrize("iterations", [{}, {"while": 1}, {"while": 8}])
def test_a_loop_that_ends_is_as_it_was(iterations):
    sample = whole_sample(counted, jnp.float32(1), jnp.float32(8))
    runner = Ending(sample.program, iterations)
    assert list(map(float, runner(sample.inputs))) == [8.0, 8.0]


def test_one_that_does_not_is_cut_and_its_floats_are_nan():
    sample = whole_sample(counted, jnp.float32(0), jnp.float32(8))
    value, count = Ending(sample.program, {"while": 8})(sample.inputs)
    assert np.isnan(value)
    assert count == PATIENCE * 9
