"""What only a run of both programs shows is said when a program is converted."""

import json
import warnings
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    ExactArgumentWarning,
    LoopWarning,
    OverflowWarning,
)

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
    with pytest.warns(AmpWarning, match=r"^mul \(.* is not finite in float16"):
        converted = amprewrite.convert(program, "fp16", args=(X, LARGE, W))
    assert not jnp.isfinite(converted(X, LARGE, W)).all()
    assert jnp.isfinite(program(X, LARGE, W)).all()


def test_a_loop_is_looked_into():
    assert warned(in_a_loop)[0].startswith("dot_general")


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


def test_nothing_is_run_of_an_inspected_program_or_under_a_trace():
    program, runs = counted()
    amprewrite.inspect(program, "fp16", args=(X, LARGE, W))
    assert runs == []
    jax.jit(amprewrite.convert(program, "fp16"))(X, LARGE, W).block_until_ready()
    assert len(runs) == 1  # the call itself


# --- defects that leave outputs finite, and programs without any ---------------------

KINDS = (OverflowWarning, ExactArgumentWarning, LoopWarning)


def heard(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [w for w in caught if issubclass(w.category, KINDS)]


def unit_length(x, _, w):
    y = ((x @ w) * 6e4) @ w
    return x * lax.rsqrt(1 + jnp.square(y).sum(-1))[:, None]


def in_turns(x, _, w):
    def turn(c, _):
        return jnp.tanh(((c @ w) * 6e4) @ w), None

    return lax.scan(turn, x, None, length=20)[0]


def in_a_while(x, _, w):
    def turn(state):
        return jnp.tanh(((state[0] @ w) * 6e4) @ w), state[1] + 1

    return lax.while_loop(lambda state: state[1] < 3, turn, (x, 0))[0]


SQUARE = W @ W.T / 8 + jnp.eye(8)


def solve(x, _, w):
    """Return the steps of Jacobi's iteration, down to a residual of 1e-4."""
    del w
    a, b = SQUARE, x[0]

    def goes_on(state):
        return jnp.linalg.norm(b - a @ state[0]) > 1e-4

    def turn(state):
        return state[0] + 0.3 * (b - a @ state[0]) / jnp.diag(a), state[1] + 1

    return lax.while_loop(goes_on, turn, (b * 0, 0))


def nested(x, v, w):
    def turn(c, _):
        return c + solve(x, v, w)[1], None

    return lax.scan(turn, 0, None, length=2)[0]


def spun(x, _, w):
    def turn(c, a):
        return c + a @ w, jnp.sin(c * 9)

    return lax.scan(turn, jnp.zeros(8), x * 9)[1]


DEFECTS = {
    "rsqrt swallows": ("fp16", unit_length, OverflowWarning, " is not finite in"),
    "in a scan": ("fp16", in_turns, OverflowWarning, " is not finite in"),
    "in a while": ("fp16", in_a_while, OverflowWarning, " is not finite in"),
    "a phase": (
        *("autocast-cpu", lambda x, _, w: jnp.sin((x @ w) @ w * 9)),
        *(ExactArgumentWarning, "radians"),
    ),
    "a phase that adds up": ("autocast-cpu", spun, ExactArgumentWarning, "radians"),
    "codes": (
        *("autocast-cpu", lambda x, _, w: jnp.round(x @ w * 30)),
        *(ExactArgumentWarning, "steps"),
    ),
    "a period": (
        *("autocast-cpu", lambda x, _, w: jnp.mod(x @ w * 30, 0.5)),
        *(ExactArgumentWarning, "multiples of the divisor"),
    ),
    "indices": (
        *("autocast-cpu", lambda x, _, w: (x @ w * 99).astype(int)),
        *(ExactArgumentWarning, "steps"),
    ),
    "a loop": ("autocast-cpu", solve, LoopWarning, "has not ended after "),
    "a loop in a loop": ("autocast-cpu", nested, LoopWarning, "has not ended after "),
}


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_defect_is_told_once_and_cured(name, *, at_once):
    policy, program, kind, words = DEFECTS[name]

    def converted(rules):
        def run():
            options: Any = {"args": (X, LARGE, W)} if at_once else {}
            made = amprewrite.convert(program, policy, overrides=rules, **options)
            if "loop" not in name and not at_once:
                made(X, LARGE, W)
                made(X, LARGE, W)
            elif not at_once:  # it would not end
                made.prepare((X, LARGE, W), {})

        return heard(run)

    rules = []
    (found,) = converted(rules)
    assert found.category is kind
    assert words in str(found.message)
    assert "test_run_check.py:" in str(found.message)
    while found is not None and len(rules) < 8:
        text = str(found.message).partition("overrides=")[2]
        rules += json.loads(text.split("]")[0] + "]")
        found = next(iter(converted(rules)), None)
    assert found is None


def masked(x, _, w):
    scores = (x @ w) @ (x @ w).T
    mask = jnp.where(jnp.tri(4) > 0, 0.0, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores + mask) @ x


def counts(x, _, w):
    return lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] @ w, s[1] + 1), (x, 0))[0]


HARMLESS = {
    "a mask": ("fp16", masked),
    "a layer": ("fp16", lambda x, _, w: jax.nn.relu(x @ w) @ w),
    "infinite itself": ("fp16", lambda x, _, w: x @ w / 0),
    "a scan": (
        "fp16",
        lambda x, _, w: lax.scan(lambda c, _: (c @ w / 9, c), x, None, 9),
    ),
    "a branch": (
        "fp16",
        lambda x, _, w: lax.cond(x[0, 0] > 9, jnp.exp, jnp.sin, x @ w),
    ),
    "positions": ("bf16", lambda x, _, w: x @ w * jnp.sin(jnp.arange(8.0) * 1000)),
    "demand": ("bf16", lambda x, _, w: jnp.sin(x @ w * 100)),
    "argmax": ("bf16", lambda x, _, w: (x @ w).argmax(-1)),
    "a loop that counts": ("bf16", counts),
    "a loop with a test": ("bf16", solve),
    "off": ("off", spun),
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_program_without_a_defect_is_not_warned_of(name, *, at_once):
    policy, program = HARMLESS[name]

    def run():
        options: Any = {"args": (X, LARGE, W)} if at_once else {}
        amprewrite.convert(program, policy, **options)(X, LARGE, W)

    assert [str(w.message) for w in heard(run)] == []


def test_a_loop_without_an_end_does_not_hang():
    def run():
        amprewrite.convert(solve, "autocast-cpu", args=(X, LARGE, W))

    (found,) = heard(run)
    assert "has not ended after" in str(found.message)


def test_a_filter_turns_a_warning_off():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=OverflowWarning)
        amprewrite.convert(unit_length, "fp16", args=(X, LARGE, W))
