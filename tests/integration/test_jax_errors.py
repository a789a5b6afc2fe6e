"""What cannot be converted, what leaks, marks in a program, and traces counted."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
import amprewrite.training.jax
from amprewrite.errors import (
    AmpWarning,
    CaptureError,
    PolicyError,
    UnsupportedError,
)
from tests.jax_programs import (
    checked_jaxpr,
    equations,
    full_contractions,
    normal,
    operand_dtypes,
    relative_error,
    weight,
)

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")

X = normal(4, 16)
W = weight(16, 16)


def decides_by_values(x):
    if x.sum() > 0:  # the line that the message names
        return x
    return -x


def makes_an_int(x):
    return range(int(x.sum()))


def test_a_decision_by_values_names_the_line_and_the_way_out():
    here = decides_by_values.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=rf"test_jax_errors\.py:{here}.*lax\.cond"):
        amprewrite.convert(decides_by_values)(X)
    with pytest.raises(CaptureError, match=r"test_jax_errors\.py"):
        amprewrite.convert(makes_an_int)(X)


def test_a_decision_by_a_python_value_is_part_of_the_program():
    def program(x, *, flag, count):
        return x * count @ W if flag == "on" else x

    converted = amprewrite.convert(program)
    assert relative_error(converted(X, flag="on", count=2), X * 2 @ W) <= 1e-2
    assert (converted(X, flag="off", count=2) == X).all()
    assert relative_error(converted(X, flag="on", count=3), X * 3 @ W) <= 1e-2


def test_an_argument_without_a_hash_is_named():
    class Odd:
        def __hash__(self):
            raise TypeError

    with pytest.raises(UnsupportedError, match=r"argument \[1\].*Odd"):
        amprewrite.convert(lambda x, _: x)(X, Odd())


def test_an_error_of_the_program_is_the_programs_own():
    def program(_):
        msg = "of the model"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="of the model"):
        amprewrite.convert(program)(X)
    with pytest.raises(ValueError, match="dimension_numbers"):
        amprewrite.convert(lambda x: lax.dot(x, jnp.ones((3, 3))))(X)


def test_a_leak_is_an_error_and_not_a_wrong_answer():
    kept = []

    def leaky(x):
        kept.append(x @ W)
        return kept[0] * 2.0

    converted = amprewrite.convert(leaky)
    converted(X)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="leak"):
        converted(X[:2])


def test_nothing_leaks():
    def program(w, x):
        return lax.scan(lambda h, _: (jax.nn.relu(h @ w), h), x, None, length=2)

    with jax.checking_leaks():
        converted = amprewrite.convert(program)
        jax.jit(converted)(W, X)
        jax.grad(lambda w: converted(w, X)[0].sum())(W)


def test_a_program_is_traced_once_in_each_precision_for_each_signature():
    traces = []

    def program(w, x):
        traces.append(x.shape)
        return jnp.tanh(x @ w)

    converted = amprewrite.convert(program)
    for _ in range(5):
        converted(W, X)
    assert len(traces) == 2
    converted(W, X[:2])
    converted(W, X)
    assert len(traces) == 4
    jax.jit(converted)(W, X)
    jax.grad(lambda w: converted(w, X).sum())(W)
    jax.vmap(converted, (None, 0))(W, X[None])
    assert len(traces) == 4


def test_what_is_closed_over_follows_its_trace():
    def outer(w, x):
        converted = amprewrite.convert(lambda y: jnp.tanh(y @ w))
        return converted(x) + converted(x * 2)

    expected = jnp.tanh(X @ W) + jnp.tanh(X * 2 @ W)
    assert relative_error(jax.jit(outer)(W, X), expected) <= 1e-2
    assert relative_error(outer(W, X), expected) <= 1e-2
    gradient = jax.jit(jax.grad(lambda w: outer(w, X).sum()))(W)
    assert jnp.isfinite(gradient).all()

    def reused(ws, x):
        current = []
        converted = amprewrite.convert(lambda y: jnp.tanh(y @ current[-1]))

        def turn(h, w):
            current.append(w)
            return converted(h), None

        return lax.scan(turn, x, ws)[0]

    stacked = jnp.stack([W, W * 2])
    expected = jnp.tanh(jnp.tanh(X @ W) @ (W * 2))
    assert relative_error(jax.jit(reused)(stacked, X), expected) <= 2e-2


def precisions(function, *args):
    closed = checked_jaxpr(amprewrite.convert(function), *args)
    return {
        (e.primitive.name, operand_dtypes(e)[0])
        for e in equations(closed)
        if e.primitive.name in ("dot_general", "exp")
    }


@amprewrite.full_precision
def full_layer(w, x):
    return jnp.tanh(x @ w)


LOW: Any = amprewrite.low_precision()


@LOW
def low_exp(x):
    return jnp.exp(x)


def test_marks_as_decorators_and_as_contexts():
    def program(w, x):
        with amprewrite.low_precision():
            h = jnp.exp(x @ w)
        return full_layer(w, h) + low_exp(h)

    found = precisions(program, W, X)
    assert ("exp", "bfloat16") in found
    assert {d for n, d in found if n == "dot_general"} == {"bfloat16", "float32"}


def test_marks_survive_jit_scan_and_gradients():
    def program(w, x):
        def turn(h, _):
            return jax.jit(full_layer)(w, h), None

        return lax.scan(turn, x, None, length=2)[0].sum()

    assert precisions(program, W, X) == {("dot_general", "float32")}
    assert precisions(jax.grad(program), W, X) == {("dot_general", "float32")}
    assert precisions(jax.vmap(program, (None, 0)), W, X[None]) == {
        ("dot_general", "float32")
    }
    before = jax.grad(amprewrite.convert(program))
    dots = full_contractions(checked_jaxpr(before, W, X))
    assert len(dots) == 3


def test_a_key_that_is_closed_over_is_a_constant_and_no_number():
    key = jax.random.key(0)

    def noisy(w, x):
        return x @ w + jax.random.normal(key, (4, 16))

    converted = amprewrite.convert(noisy, args=(W, X))
    assert converted.plan.lowered
    assert relative_error(converted(W, X), noisy(W, X)) < 1e-2


def scoped(x):
    with jax.named_scope("encoder"), jax.named_scope("norm"):
        x = x - x.mean(-1, keepdims=True)
    with jax.named_scope("encoder"), jax.named_scope("dense"):
        return x @ W


def test_a_rule_that_matches_nothing_is_told_the_nearest_paths():
    rules = [{"path": "encoder.densse", "class": "deny"}]
    wanted = r"no module path is 'encoder\.densse', nearest 'encoder\.dense'"
    given: dict[str, Any]
    for given in ({"args": (X,)}, {}):
        with pytest.warns(AmpWarning, match=wanted):
            amprewrite.convert(scoped, overrides=rules, **given)(X)
    with pytest.warns(AmpWarning, match=wanted):
        jax.jit(amprewrite.convert(scoped, overrides=rules))(X)


def test_a_path_that_is_a_module_means_all_that_is_in_it():
    rules = [{"path": "encoder", "class": "deny"}]
    converted = amprewrite.convert(scoped, args=(X,), overrides=rules)
    assert {d.op_class for d in converted.plan.decisions if d.path} == {"deny"}


def test_dynamic_shapes_are_refused_and_not_ignored():
    shapes: Any = ({0: "batch"},)
    for entry in (amprewrite.convert, amprewrite.inspect):
        with pytest.raises(UnsupportedError, match="JAX traces a function anew for"):
            entry(scoped, args=(X,), dynamic_shapes=shapes)


def test_warnings_point_to_the_line_of_the_user():
    rules = [{"path": "decoder", "class": "deny"}]
    lazy = amprewrite.convert(scoped, overrides=rules)
    jitted = jax.jit(amprewrite.convert(scoped, overrides=rules))
    grad = amprewrite.training.jax.value_and_grad
    calls = (
        lambda: amprewrite.convert(scoped, args=(X,), overrides=rules),
        lambda: lazy(X),
        lambda: jitted(X),
        lambda: grad(lambda x: scoped(x).sum(), "fp16", loss_scale=None)(X),
    )
    for call in calls:
        with pytest.warns(AmpWarning) as caught:
            call()
        places = {(warning.filename, warning.lineno) for warning in caught}
        assert places == {(__file__, call.__code__.co_firstlineno)}


def test_an_op_of_a_rule_that_is_misspelt_is_told_the_nearest():
    rules = [{"op": "layernorm", "class": "deny"}]
    with pytest.raises(PolicyError, match="did you mean 'layer_norm'"):
        amprewrite.convert(scoped, overrides=rules)
