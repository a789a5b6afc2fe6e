"""What is measured of a program, and when it is measured again."""

from dataclasses import replace

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.jaxpr.probes import tolerance
from amprewrite.plan.bounds import Tolerance
from tests.jax_programs import normal, relative_error, weight

W, X = weight(256, 256), normal(128, 256)


def planned(function, *args, bound: Tolerance = 1e-2):
    return amprewrite.convert(function, args=args, placement="optimal", tolerance=bound)


def chain(w, x):
    return jnp.tanh(x @ w) @ w


def test_what_was_measured_holds_for_other_extents_of_the_same_ops():
    converted = planned(chain, W, X)
    (known,) = converted.tolerant.known
    first, again = (converted.prepare((W, X), {})[0] for _ in range(2))
    assert again is first
    assert known.is_of(first.graph)
    assert known.target == 1e-2
    assert 0.5 < known.excess < 2
    with pytest.warns(UserWarning, match="predicted, not measured"):
        more = converted.prepare((W, X[:96]), {})[0]
    assert known.is_of(more.graph)
    assert tolerance.REUSED in more.plan.warnings
    assert len(converted.tolerant.known) == 1
    other = planned(lambda w, x: jnp.sin(x @ w) @ w, W, X)
    assert not known.is_of(other.prepare((W, X), {})[0].graph)


def test_candidates_run_with_the_roundings_of_their_plans():
    converted = planned(chain, W, X)
    (known,) = converted.tolerant.known
    measured = known.errors[converted.prepare((W, X), {})[0].plan.decisions]
    assert measured > 1e-3
    error = relative_error(converted(W, X), chain(W, X))
    assert measured == pytest.approx(error, rel=1e-2)


def test_traced_arguments_and_traced_constants_have_no_values():
    with pytest.raises(UnsupportedError, match="these are traced"):
        jax.jit(lambda w: planned(chain, w, X)(w, X))(W)
    with pytest.raises(UnsupportedError, match="these are traced"):
        jax.jit(lambda w: planned(lambda x: x @ w, X)(X))(W)


def test_a_plan_that_failed_is_not_chosen_for_other_extents():
    """What was too inaccurate when measured is so whatever was predicted."""
    program = chain, W, X
    loose = planned(*program).prepare((W, X), {})[0].plan
    converted = planned(*program, bound=loose.predicted_error * 1.2)
    (known,) = converted.tolerant.known
    assert known.error(loose) == pytest.approx(known.errors[loose.decisions])
    worse = replace(known, errors={loose.decisions: 1.0})
    converted.tolerant.known[:] = [worse]
    assert worse.error(loose) == 1.0
    with pytest.warns(UserWarning, match="predicted, not measured"):
        more = converted.prepare((W, X[:96]), {})[0].plan
    assert more.decisions != loose.decisions


def test_only_the_bounded_outputs_must_be_finite():
    def run(w, x):
        return {"a": x @ w, "b": jnp.log(x * 0)}

    assert planned(run, W, X, bound={"a": 1e-2}).plan.predicted_error < 1e-2
    for bound in (1e-2, "autocast", {"b": 1e-2}):
        with pytest.raises(ToleranceError, match="output b has infinities"):
            planned(run, W, X, bound=bound)
