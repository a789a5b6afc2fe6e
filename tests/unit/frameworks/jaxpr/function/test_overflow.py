"""Infinities of a narrow dtype are found and said when a program is converted."""

import warnings

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.errors import AmpWarning

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 8))
LARGE = jax.random.normal(KEY, (8, 8)) * 3e3
W = jax.random.normal(KEY, (8, 8))


def large(x, v, w):
    return ((x @ v) * 1000) @ w / 1e9


def in_a_loop(x, v, w):
    def turn(c, _):
        return (c @ v) @ w / 1e3, None

    return lax.scan(turn, x, None, length=3)[0] / 1e9


def warned(program, policy="fp16", args=(X, LARGE, W), **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        converted = amprewrite.convert(program, policy, args=args, **options)
    found = [str(w.message) for w in caught if "not finite" in str(w.message)]
    assert found == [w for w in converted.plan.warnings if "not finite" in w]
    return found


@pytest.mark.parametrize("program", [large, jax.jit(large)])
def test_the_first_op_beyond_the_range_is_named(program):
    with pytest.warns(AmpWarning, match=r"finite in float32: the first is mul \("):
        converted = amprewrite.convert(program, "fp16", args=(X, LARGE, W))
    assert not jnp.isfinite(converted(X, LARGE, W)).all()
    assert jnp.isfinite(program(X, LARGE, W)).all()


def test_a_loop_is_looked_into():
    assert "the first is " in warned(in_a_loop)[0]


def test_a_program_without_infinities_is_not_warned_of():
    def attend(x, _, w):
        return jax.nn.softmax(jnp.where(x > 0, x @ w, -jnp.inf))

    assert warned(attend) == []


def test_one_that_is_infinite_by_itself_is_not_warned_of():
    assert warned(lambda x, _, w: (x @ w) / 0) == []


def test_a_tolerance_gives_finite_outputs_and_no_warning():
    assert warned(large, placement="optimal", tolerance=1e-2) == []


def test_a_module_is_looked_at_too():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 8, 8, 2, key=KEY)
    model = jax.tree.map(lambda leaf: leaf * 1e3 if eqx.is_array(leaf) else leaf, model)
    assert "layers." in warned(model, args=(X[0],))[0]


def test_what_prints_is_not_run_for_this(capfd):
    def program(x, v, w):
        jax.debug.print("seen")
        return large(x, v, w)

    assert warned(program) == []
    assert capfd.readouterr().out == ""


def counted():
    """Return a program that overflows, and a list that grows by each of its runs."""
    runs = []

    def note(y):
        runs.append(y)
        return y

    def program(x, v, w):
        y = large(x, v, w)
        return jax.pure_callback(note, jax.ShapeDtypeStruct(y.shape, y.dtype), y)

    return program, runs


@pytest.mark.parametrize(
    ("policy", "is_run"),
    [("fp16", True), ("bf16", False), ("promote", False), ("off", False)],
)
def test_other_dtypes_cost_no_run(policy, is_run):
    program, runs = counted()
    assert bool(warned(program, policy)) == is_run
    assert bool(runs) == is_run


def test_nothing_is_run_without_values():
    shapes = jax.eval_shape(lambda *args: args, X, LARGE, W)
    assert warned(large, args=shapes) == []


def test_only_the_arguments_of_the_conversion_are_tried():
    program, runs = counted()
    amprewrite.inspect(program, "fp16", args=(X, LARGE, W))
    assert runs == []
    amprewrite.convert(program, "fp16")(X, LARGE, W).block_until_ready()
    assert len(runs) == 1  # the call itself
