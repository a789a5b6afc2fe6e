import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.dtypes import FORMATS, is_lossless, same_kind, saturate, survives, ulp
from amprewrite.dtypes.fits import becomes, edges
from amprewrite.errors import PromotionError

names = st.sampled_from(sorted(FORMATS))
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("name", "x", "spacing"),
    [
        ("float32", 1.0, 2**-23),
        ("bfloat16", 1.0, 2**-7),
        ("bfloat16", -300.0, 2),
        ("float16", 0.0, 2**-24),
        ("float16", 1e9, 32),
        ("float8_e8m0fnu", 4.0, 4),
        ("complex64", 1.0, 2**-23),
        ("int8", 3.0, 1),
    ],
)
def test_ulp(name, x, spacing):
    assert ulp(name, x) == spacing


def test_ulp_of_what_is_not_finite():
    assert math.isnan(ulp("float32", math.nan))
    assert math.isnan(ulp("float32", -math.inf))


@given(finite)
def test_ulp_of_float64_is_pythons(x):
    assert ulp("float64", x) == math.ulp(x)


@pytest.mark.parametrize(
    ("name", "value", "clamped"),
    [
        ("float16", 1e9, 65504),
        ("float16", -1e9, -65504),
        ("float16", 0.3, 0.3),
        ("float16", -math.inf, -math.inf),
        ("float8_e4m3fn", 465, 448),
        ("uint8", -3, 0),
        ("float8_e8m0fnu", 0.0, 2.0**-127),
    ],
)
def test_saturate(name, value, clamped):
    assert saturate(name, value) == clamped


def test_saturate_lets_nan_pass():
    assert math.isnan(saturate("float16", math.nan))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float16", 0.0),
        ("float16", 65504.0),
        ("float16", -6.2e-5),
        ("float16", math.inf),
        ("bfloat16", 1e-8),
        ("bfloat16", -1e9),
        ("float8_e4m3fn", math.nan),
        ("int8", -128),
    ],
)
def test_survives(name, value):
    assert survives(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float16", 1e-8),
        ("float16", 1e9),
        ("float16", 6e-5),
        ("bfloat16", -3.4028235e38),  # finfo(float32).min becomes -inf
        ("float8_e4m3fn", math.inf),
        ("float8_e8m0fnu", 0.0),
        ("float4_e2m1fn", math.nan),
        ("int8", 128),
        ("uint8", -1),
    ],
)
def test_does_not_survive(name, value):
    assert not survives(name, value)


@given(names, finite)
def test_what_survives_is_not_clamped(name, value):
    if survives(name, value):
        assert saturate(name, value) == value


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float8_e4m3fn", "bfloat16"),
        ("float8_e8m0fnu", "bfloat16"),
        ("uint8", "bfloat16"),
        ("int32", "float64"),
        ("bool", "float8_e4m3fn"),
        ("float32", "complex64"),
        ("uint8", "int16"),
    ],
)
def test_lossless(a, b):
    assert is_lossless(a, b)
    assert not is_lossless(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bfloat16", "float16"),
        ("float8_e5m2", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e5m2fnuz"),  # only -0.0 is lost
        ("int16", "bfloat16"),
        ("int64", "float64"),
        ("uint8", "int8"),
        ("uint64", "int64"),
    ],
)
def test_lossy_both_ways(a, b):
    assert not is_lossless(a, b)
    assert not is_lossless(b, a)


@given(names, names, names)
def test_lossless_is_an_order(a, b, c):
    assert is_lossless(a, a)
    if is_lossless(a, b) and is_lossless(b, c):
        assert is_lossless(a, c)
    if is_lossless(a, b) and is_lossless(b, a):
        assert FORMATS[a].precision == FORMATS[b].precision


@pytest.mark.parametrize("question", [ulp, saturate, survives])
def test_an_unknown_name_is_refused(question):
    with pytest.raises(PromotionError, match="unknown dtype 'flaot32'"):
        question("flaot32", 1.0)


NUMPY = ["bool", "uint8", "int16", "int64", "float16", "float64", "complex64"]


@pytest.mark.parametrize("a", NUMPY)
@pytest.mark.parametrize("b", NUMPY)
def test_the_same_kind_is_that_of_numpy_but_for_signs(a, b):
    unsigned = (a[:3], b) == ("int", "uint8")
    assert same_kind(a, b) == (np.can_cast(a, b, casting="same_kind") or unsigned)


@pytest.mark.parametrize(
    ("name", "value", "new"),
    [
        ("bfloat16", 0.999, 1.0),
        ("bfloat16", -0.999, -1.0),
        ("bfloat16", 1 + 1e-4, 1.0),
        ("bfloat16", 0.99, None),
        ("bfloat16", 1.0, None),
        ("bfloat16", 1e-8, None),
        ("float16", 0.999, None),
        ("float16", 1 - 1e-4, 1.0),
        ("float16", 1e-8, 0.0),
        ("float16", -1e9, -math.inf),
        ("float16", 65504.0, None),
        ("bfloat16", -3.4028234663852886e38, -math.inf),
        ("float32", 1 - 1e-7, None),
        ("float32", 1 - 1e-9, 1.0),
        ("float16", 0.0, None),
        ("float16", math.inf, None),
        ("float16", math.nan, None),
    ],
)
def test_the_number_that_a_format_makes_of_another(name, value, new):
    assert becomes(name, value) == new


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@given(st.floats(0.5, 1.5))
def test_a_number_becomes_one_if_its_rounding_is_one(name, x):
    dtype = np.dtype("float16") if name == "float16" else ml_dtypes.bfloat16
    is_one = x != 1 and float(np.asarray(x, dtype)) == 1
    assert (becomes(name, x) == 1) == is_one


def test_edges_of_a_few_numbers_and_of_a_table():
    numbers = (0.0, 0.5, 0.9999, 1e-8, -1e9, 3.0)
    assert edges(numbers) == (-1e9, 1e-8, 0.9999)
    assert edges(numbers, table=True) == (-1e9,)
