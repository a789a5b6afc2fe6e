import numpy as np
import pytest

from amprewrite.measure import ORIGINAL, REFERENCE
from amprewrite.measure.runs import Run
from amprewrite.verify.compare import gradient_errors


def run(**gradients):
    """A run with these gradients."""
    return Run({}, gradients={n: np.array(x, float) for n, x in gradients.items()})


def bound(baseline, original):
    """Twice the larger one."""
    return 2 * max(baseline or 0, original or 0)


def errors(found, exact, original=None, reference="float64", **baselines):
    """The rows by name."""
    runs = {REFERENCE: exact, **({ORIGINAL: original} if original else {})}
    runs |= {name.replace("_", " "): run for name, run in baselines.items()}
    return {row.name: row for row in gradient_errors(runs, found, reference, bound)}


def test_a_gradient_has_its_relative_error():
    rows = errors(run(w=[3.0, 4.1], v=[1.0]), run(w=[3.0, 4.0], v=[1.0]))
    assert rows["w"].relative_l2 == pytest.approx(0.1 / 5)
    assert (rows["w"].zero, rows["v"].relative_l2) == (False, 0)


def test_one_that_is_zero_is_compared_with_the_size_of_the_others():
    rows = errors(run(w=[3.0, 4.0], b=[0.1, 0]), run(w=[3.0, 4.0], b=[1e-17, 0]))
    assert rows["b"].zero
    others = (25 / 4) ** 0.5 * 2**0.5
    assert rows["b"].relative_l2 == pytest.approx(0.1 / others)


def test_one_that_is_small_but_known_is_not_zero():
    exact = run(w=[1.0], small=[1e-9])
    rows = errors(run(w=[1.0], small=[2e-9]), exact)
    assert (rows["small"].zero, rows["small"].relative_l2) == (False, 1)
    noisy = run(w=[1.0], small=[-3e-9])
    rows = errors(run(w=[1.0], small=[2e-9]), exact, original=noisy)
    assert rows["small"].zero
    assert rows["small"].relative_l2 < 1e-8


def test_a_reference_in_float32_has_noise_of_its_own():
    found, exact = run(w=[1.0], b=[1e-3]), run(w=[1.0], b=[1e-6])
    assert errors(found, exact, reference="float32")["b"].zero
    assert not errors(found, exact)["b"].zero


def test_where_all_are_zero_nothing_is_divided():
    rows = errors(run(b=[0.0]), run(b=[0.0]))
    assert rows["b"].relative_l2 == 0
    assert errors(run(b=[1.0]), run(b=[0.0]))["b"].relative_l2 == float("inf")


def test_a_gradient_is_bound_by_the_best_baseline_and_by_the_original():
    exact = run(w=[3.0, 4.0])
    found = errors(
        run(w=[3.0, 4.1]),
        exact,
        original=run(w=[3.0, 4.01]),
        autocast=run(w=[3.0, 4.2]),
        cast_all=run(w=[3.0, 4.5]),
    )["w"]
    assert found.bound == pytest.approx(2 * 0.2 / 5)
    assert found.original == pytest.approx(0.01 / 5)
    assert not found.is_violation
    assert errors(run(w=[3.0, 4.1]), exact)["w"].is_violation


def test_what_the_converted_model_lacks_is_left_out():
    assert errors(run(), run(w=[1.0])) == {}
