"""Range, headroom and underflow of the values of ops."""

from dataclasses import replace
from math import inf

import numpy as np

from amprewrite.measure.runs import OpSample
from amprewrite.plan import Decision
from amprewrite.verify.own_errors import op_error

HALF = Decision("a", "a", "a", "allow", "float16", "", "", results=("float16",))


def sample(wanted, found, **options):
    arrays = np.array(wanted, float), np.array(found, float)
    return OpSample("a", arrays[:1], arrays[1:], arrays[1:], exact=False, **options)


def ranged(row):
    return row.dtype, row.largest, row.headroom, row.underflow, row.nonfinite


def test_headroom_is_counted_in_octaves_of_the_reference():
    assert op_error(sample([65504 / 8, -1], [8192, -1]), HALF).headroom == 3
    over = op_error(sample([4 * 65504, 1, inf], [inf, 1, inf]), HALF)
    assert (over.headroom, over.largest, over.nonfinite) == (-2, 4 * 65504, 1)
    assert ranged(op_error(sample([0], [0]), HALF)) == ("float16", 0.0, None, 0.0, 0)


def test_zeros_and_subnormals_underflow_but_zeros_of_the_reference_do_not():
    small = op_error(sample([1e-9, 1e-6, 1, 0], [0, 1e-6, 1, 0]), HALF)
    assert small.underflow == 0.5


def test_a_cast_counts_what_was_left_out_of_its_error():
    whole = np.array([1e6]), np.array([inf])
    cast = op_error(sample([0], [0], whole=whole), HALF)
    assert (cast.largest, cast.nonfinite) == (1e6, 1)


def test_the_result_with_the_least_headroom_counts():
    mixed = replace(HALF, results=("float16", "int64", "float32"))
    arrays = np.array([1.0]), np.array([2.0])
    found = op_error(OpSample("a", arrays, arrays, arrays, exact=True), mixed)
    assert (found.dtype, found.largest) == ("float16", 1.0)


def test_an_op_that_makes_no_float_has_no_range():
    none = op_error(OpSample("a", (), (), (), exact=True), HALF)
    assert ranged(none) == ("", 0.0, None, 0.0, 0)
