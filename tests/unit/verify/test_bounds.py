from dataclasses import replace
from math import inf, sqrt

import ml_dtypes
import numpy as np
import pytest

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.plan import Cost, Decision, Plan
from amprewrite.verify import bounds
from tests.plan_text import SMALL, plan_of


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_the_unit_roundoff_is_half_the_spacing_at_one(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    spacing = ml_dtypes.finfo(dtype).eps
    assert bounds.unit_roundoff(name) == float(spacing) / 2


def test_the_error_grows_with_the_root_of_the_depth():
    one = bounds.tolerance("bfloat16", 1)
    assert bounds.tolerance("bfloat16", 9) == pytest.approx(3 * one)
    assert one == pytest.approx(bounds.CONFIDENCE * sqrt(3) * 2.0**-8, rel=1e-6)


def test_long_contractions_add_the_error_of_their_sums():
    short = bounds.tolerance("float32", 1, 1)
    assert bounds.tolerance("float32", 1, 10_000) > 10 * short


def chain_of_rounded_products(generator, depth):
    """The relative error of a product of numbers, rounded to bfloat16 each time."""
    factors = generator.uniform(1, 2, size=(depth, 4096))
    wanted, found = np.ones(4096), np.ones(4096)
    for row in factors:
        wanted = wanted * row / 1.5
        rounded = (found * row / 1.5).astype(np.float32).astype(ml_dtypes.bfloat16)
        found = rounded.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("depth", [1, 10, 50])
def test_a_chain_of_roundings_is_within_and_not_far_below(depth):
    error = chain_of_rounded_products(np.random.default_rng(depth), depth)
    bound = bounds.tolerance("bfloat16", depth)
    assert bound / 30 < error < bound


def program():
    """A fork: ``a`` and ``b`` after ``x``, ``c`` after both."""
    operands = {"a": ("x",), "b": ("x",), "c": ("a.", "b."), "d": ("c.",)}
    values = {"x": Value("x", "float32", (8,), "input")}
    for name in operands:
        values[f"{name}."] = Value(f"{name}.", "float32", (8,))
    ops = tuple(
        Op(name, "mul", "aten.mul", inputs, (f"{name}.",), contracted=16)
        for name, inputs in operands.items()
    )
    return ProgramGraph(values, ops, ("d.",))


def test_a_chain_counts_the_ops_of_one_path():
    graph = program()
    assert bounds.longest_chain(graph, frozenset("abcd")) == 3
    assert bounds.longest_chain(graph, frozenset("ab")) == 1
    assert bounds.longest_chain(graph, frozenset()) == 0


def plan(low="bfloat16", precision="bfloat16"):
    decisions = tuple(
        Decision(name, "mul", "aten.mul", "allow", precision, "ops.mul", "")
        for name in "abcd"
    )
    cost = Cost(0, 0, 0, 0, 0)
    return Plan("p", "promote", low, "float32", "", decisions, (), cost=cost)


def test_a_prediction_explains_a_multiple_of_itself():
    known, found = program(), {"original": 1e-7, "autocast": 0.02, "cast all": 0.01}
    low = replace(plan(), decisions=plan().decisions)
    assert bounds.explained_error(1e-3, found, low, known) == bounds.MULTIPLE * 1e-3
    assert bounds.explained_error(None, found, low, None) == bounds.MULTIPLE * 0.01
    most = bounds.expected_error(low, known)
    assert bounds.explained_error(0.5, found, low, known) == most
    noisy = {**found, "original": 1.0}
    assert bounds.explained_error(1e-3, noisy, low, known) == bounds.NOISE
    assert bounds.explained_error(inf, {}, low, known) == bounds.expected_error(
        low, known
    )
    assert bounds.explained_error(1e-3, found, None, None) is None


def test_what_a_plan_lets_expect():
    graph = program()
    wanted = bounds.tolerance("bfloat16", 3, 16)
    assert bounds.expected_error(plan(), graph) == pytest.approx(wanted)
    without = bounds.expected_error(plan(), None)
    assert without == pytest.approx(bounds.tolerance("bfloat16", 4))
    assert bounds.expected_error(None, graph) is None


def test_a_plan_that_lowers_nothing_is_held_to_its_full_dtype():
    off = replace(plan(), low="", decisions=plan(precision="float32").decisions)
    assert (bounds.expected_error(off, program()) or 1) < 1e-5


@pytest.mark.parametrize(
    ("baseline", "original", "deep", "wanted"),
    [
        (0.01, 1e-6, 0.05, 0.04),  # a multiple of the baseline's
        (0.5, 1e-6, 0.05, bounds.ZEROS),  # less than that of zeros
        (0.95, 1e-6, 0.05, 0.95),  # as wrong as the baseline
        (1.0, 1e-6, 0.05, 1.0),
        (None, 1e-6, 0.05, 0.05),
        (None, 1e-6, 3.0, bounds.ZEROS),
        (None, None, None, bounds.ZEROS),
        (0.0, 1e-6, 0.05, 2e-6),  # the noise of the original
    ],
)
def test_a_gradient_has_the_bound_of_its_roundings(baseline, original, deep, wanted):
    found = bounds.explained_gradient(baseline, original, deep)
    assert found == pytest.approx(wanted)


def test_gradients_pass_more_ops_than_outputs():
    plan = plan_of(SMALL)
    error = bounds.expected_error(plan, None)
    assert error is not None
    assert bounds.expected_gradient(plan, None) == pytest.approx(3**0.5 * error)
    assert bounds.expected_gradient(None, None) is None
