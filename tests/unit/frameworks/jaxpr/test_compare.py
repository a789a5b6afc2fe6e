"""The runs that a report is made of, and what is said where one is not possible."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.compare import CAST_ALL, measure, walk
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call

W = jax.random.normal(jax.random.key(1), (8, 4)) / 3
X = jax.random.normal(jax.random.key(0), (2, 8))
EXACT = np.asarray(X, np.float64) @ np.asarray(W, np.float64)


def apply(w, x):
    return (x @ w).astype(jnp.float32)


def both(function, args, policy="bf16", **options):
    converted = amprewrite.convert(function, policy, args=args)
    return measure(function, converted, Call(args, {}, **options))


def test_every_run_is_there_and_the_reference_is_float64():
    found = both(apply, (W, X))
    assert set(found.runs) == {REFERENCE, ORIGINAL, CONVERTED, JITTED, CAST_ALL}
    assert (found.reference, found.low, found.notes) == ("float64", "bfloat16", ())
    np.testing.assert_allclose(found.runs[REFERENCE].outputs["output"], EXACT, 1e-13)
    assert found.runs[CAST_ALL].dtypes["output"] == "float32"  # it says astype
    assert found.plan is not None
    assert not jax.config.jax_enable_x64


def test_gradients_are_those_of_every_float_argument():
    found = both(apply, (W, X), gradients=True)
    for run in found.runs.values():
        assert list(run.gradients) == ["w", "x"]
    one, two = (found.runs[name].gradients["w"] for name in (REFERENCE, CONVERTED))
    np.testing.assert_allclose(one, two, rtol=0.1, atol=1e-2)
    assert not np.array_equal(one, np.float32(one))  # float64 all the way


def test_gradients_in_float16_do_not_vanish():
    def small(w, x):
        return apply(w, x) * 1e-4

    found = both(small, (W, X), policy="fp16", gradients=True)
    one, two = (found.runs[name].gradients["w"] for name in (REFERENCE, CONVERTED))
    assert np.linalg.norm(one - two) < 1e-2 * np.linalg.norm(one)


def test_what_cannot_be_differentiated_is_said():
    def loop(x):
        return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x) @ x

    with pytest.raises(UnsupportedError) as raised:
        both(loop, (jnp.ones(2),), gradients=True)
    assert "gradients=True: the original cannot be differentiated" in str(raised.value)
    assert "verify it with gradients=False" in str(raised.value)


def test_a_mistake_of_the_original_is_its_own():
    with pytest.raises(TypeError, match="dot_general"):
        measure(apply, apply, Call((W, W), {}, gradients=True))


def test_float32_may_be_the_reference():
    found = both(apply, (W, X), reference="float32")
    assert found.reference == "float32"
    held = found.runs[REFERENCE].outputs["output"]
    np.testing.assert_array_equal(held, np.float32(held))


def without_float64(w, x):
    """Apply, on a host that refuses to work while float64 is enabled."""

    def host(y):
        if jax.config.jax_enable_x64:
            msg = "no float64"
            raise TypeError(msg)
        return np.asarray(y)

    y = x @ w
    return jax.pure_callback(host, jax.ShapeDtypeStruct(y.shape, y.dtype), y)


def test_without_float64_the_reference_is_float32_and_that_is_said():
    found = both(without_float64, (W, X))
    assert found.reference == "float32"
    (note,) = (note for note in found.notes if "the reference is" in note)
    said = "the reference is float32: the function does not run in float64 ("
    assert note.startswith(said)
    assert "\n" not in note
    held = found.runs[REFERENCE].outputs["output"]
    np.testing.assert_allclose(held, EXACT, 1e-5)


def test_steps_that_keep_their_dtypes_are_named():
    def call(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda y: np.asarray(y) * 2, shape, x)

    found = measure(call, call, Call((X,), {}))
    assert found.notes == (
        (
            "the reference runs 1 steps in the dtypes that they were traced in: "
            "pure_callback"
        ),
    )


def test_low_arguments_are_widened_too():
    low = W.astype(jnp.bfloat16)
    found = measure(apply, apply, Call((low, X.astype(jnp.bfloat16)), {}))
    wide = [np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (X, W)]
    held = found.runs[REFERENCE].outputs["output"]
    np.testing.assert_allclose(held, wide[0] @ wide[1], 1e-13)


def test_cast_all_reaches_what_the_function_closed_over():
    found = both(lambda x: x @ W, (X,))
    assert found.runs[CAST_ALL].dtypes["output"] == "bfloat16"


def test_a_baseline_that_fails_is_recorded():
    def strict(x):
        if x.dtype == jnp.bfloat16:
            msg = "no bfloat16 here"
            raise TypeError(msg)
        return x @ x.T

    found = both(strict, (X,))
    assert found.failures == {CAST_ALL: "TypeError: no bfloat16 here"}


def test_any_callable_can_be_compared_but_not_op_by_op():
    call = Call((W, X), {})
    found = measure(apply, jax.jit(apply), call)
    assert (found.plan, found.low) == (None, "bfloat16")
    walked = walk(apply, jax.jit(apply), call, [].append)
    assert "has no plan" in walked.notes[0]
    assert walked.graph is None


def test_another_program_is_not_walked():
    converted = amprewrite.convert(apply, args=(W, X))
    walked = walk(lambda w, x: x @ w * 2, converted, Call((W, X), {}), [].append)
    assert walked.notes == ("no errors by op: the original is another program",)


def test_a_walk_that_fails_begins_again_in_float32():
    found = []
    converted = amprewrite.convert(without_float64, args=(W, X))
    walked = walk(without_float64, converted, Call((W, X), {}), found.append)
    assert walked.reference == "float32"
    assert any("no errors by op in float64: " in note for note in walked.notes)
    assert [one.op for one in found][-4:] == [  # the casts of its operands come first
        "x for dot_general",
        "w for dot_general",
        "dot_general",
        "pure_callback",
    ]
