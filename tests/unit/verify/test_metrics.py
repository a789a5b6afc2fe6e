"""Against mpmath, at 60 digits."""

from math import inf, isnan

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from amprewrite.verify import metrics

NUMBERS = st.floats(-1e150, 1e150, allow_subnormal=False)
PAIRS = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, n, elements=NUMBERS), arrays(np.float64, n, elements=NUMBERS)
    )
)


def errors(actual, reference):
    return metrics.errors("y", "float64", actual, reference)


def exact(values):
    return [mpmath.mpf(float(value)) for value in values]


def exact_norm(values):
    return mpmath.sqrt(sum((v * v for v in exact(values)), mpmath.mpf(0)))


@given(PAIRS)
def test_relative_l2_and_cosine_are_those_of_mpmath(pair):
    actual, reference = pair
    with mpmath.workdps(60):
        sizes = exact_norm(actual), exact_norm(reference)
        difference = exact_norm([float(x) for x in actual - reference])
        found = errors(actual, reference)
        if not sizes[1]:
            assert found.relative_l2 == (inf if difference else 0)
            return
        assert found.relative_l2 == pytest.approx(float(difference / sizes[1]))
        assert found.max_abs == max(abs(actual - reference))
        if sizes[0]:
            product = zip(exact(actual), exact(reference), strict=True)
            wanted = sum((a * r for a, r in product), mpmath.mpf(0))
            cosine = float(wanted / sizes[0] / sizes[1])
            assert found.cosine == pytest.approx(cosine, abs=1e-12)


def test_squares_neither_overflow_nor_vanish():
    for size in (1e300, 1e-300):
        reference = np.array([3.0, 4.0]) * size
        assert metrics.norm(reference) == pytest.approx(5 * size)
        assert metrics.relative_l2(reference * 1.5, reference) == pytest.approx(0.5)


def test_known_numbers():
    reference = np.array([[1.0, -1.0], [1.0, 1.0]])
    actual = np.array([[1.0, -1.0], [1.0, 1.5]])
    found = errors(actual, reference)
    assert found.relative_l2 == 0.25
    assert found.max_abs == found.max_rel == 0.5
    assert found.sqnr_db == pytest.approx(12.0412, abs=1e-4)
    assert found.argmax_agreement == 0.5


def test_small_elements_count_relative_to_the_size_of_the_array():
    reference = np.array([1e-9, 2.0])  # root mean square 1.414
    found = errors(reference + np.array([0.1414, 0]), reference)
    assert found.max_rel == pytest.approx(0.1, rel=1e-3)


def test_equal_arrays_have_no_error():
    reference = np.array([0.0, -3.0, inf])
    found = errors(reference.copy(), reference)
    assert found.relative_l2 == found.max_abs == found.max_rel == 0
    assert found.sqnr_db == inf
    assert found.cosine == pytest.approx(1)
    assert (found.nonfinite, found.nonfinite_reference) == (1, 1)
    assert found.nonfinite_new == 0


def test_what_stops_being_finite_is_an_infinite_error():
    reference = np.array([1.0, 2.0, inf, np.nan])
    found = errors(np.array([np.nan, 2.0, inf, 4.0]), reference)
    assert found.relative_l2 == found.max_abs == found.max_rel == inf
    assert found.sqnr_db == -inf
    assert isnan(found.cosine)
    counts = found.nonfinite_reference, found.nonfinite, found.nonfinite_new
    assert counts == (2, 2, 1)


def test_nothing_compares_as_equal():
    found = errors(np.zeros((0, 3)), np.zeros((0, 3)))
    assert found.relative_l2 == found.max_abs == 0
    assert found.argmax_agreement is None


@pytest.mark.parametrize(("shape", "rows"), [((), None), ((4, 1), None), ((4, 2), 1.0)])
def test_rows_of_one_element_have_no_argmax(shape, rows):
    assert errors(np.ones(shape), np.ones(shape)).argmax_agreement == rows


def test_a_joint_error_is_that_of_one_long_vector():
    generator = np.random.default_rng(0)
    references = [generator.normal(size=n) * 10.0**n for n in (1, 2, 3)]
    found = [r + generator.normal(size=r.shape) for r in references]
    joined = metrics.relative_l2(np.concatenate(found), np.concatenate(references))
    pairs = zip(found, references, strict=True)
    assert metrics.joint_error(pairs) == pytest.approx(joined)
    assert metrics.joint_error([]) == 0
