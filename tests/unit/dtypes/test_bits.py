"""Bits, neighbours and errors of numbers, against NumPy and ml_dtypes."""

import math
from fractions import Fraction

import numpy as np
import pytest

from amprewrite.dtypes.anatomy import anatomies, anatomy, float_format, parse_number
from amprewrite.dtypes.formats import FORMATS
from amprewrite.errors import PromotionError

FLOATS = [name for name, found in FORMATS.items() if found.kind == "float"]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


def dtype_of(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))


def codes(values, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.atleast_1d(values).astype(dtype).view(f"u{dtype.itemsize}").tolist()


def cast(value, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.array(value).astype(dtype))


@pytest.mark.parametrize("name", FLOATS)
def test_bits_are_those_of_a_cast(name):
    dtype, found = dtype_of(name), FORMATS[name]
    rng = np.random.default_rng(0)
    values = rng.integers(-1023, 1024, 400) * 2.0 ** rng.integers(-30, 20, 400)
    values = np.concatenate([values, SPECIAL, [found.max, found.smallest_subnormal]])
    if found.name.endswith("fnu"):
        values = np.abs(values[values != 0])
    for value in values.tolist():
        made = anatomy(float.hex(value), name)
        if math.isnan(value) or (math.isinf(value) and not found.has_infinities):
            continue
        (code,) = codes(value, dtype)
        if math.isnan(made.value):  # of a NaN libraries choose the bits
            assert np.isnan(cast(value, dtype))
            continue
        # ml_dtypes fills bits beside those of small formats with the sign
        assert made.code == code & (1 << found.bits) - 1, value
        assert made.value == cast(value, dtype)


@pytest.mark.parametrize("name", [n for n in FLOATS if FORMATS[n].bits <= 8])
def test_neighbours_are_those_of_the_list_of_all_numbers(name):
    dtype, found = dtype_of(name), FORMATS[name]
    with np.errstate(invalid="ignore"):
        every = np.arange(1 << found.bits, dtype="u1").view(dtype).astype(float)
    finite = sorted({*every[np.isfinite(every)].tolist()})
    for below, value, above in zip(finite, finite[1:], finite[2:], strict=False):
        made = anatomy(float.hex(value), name)
        assert (made.below, made.value, made.above) == (below, value, above)
        assert made.error == 0
    ends = (math.inf if found.has_infinities else math.nan,) * 2
    last = anatomy(float.hex(finite[-1]), name)
    first = anatomy(float.hex(finite[0]), name)
    np.testing.assert_equal((last.above, abs(first.below)), ends)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_neighbours_are_those_of_numpy(name):
    for text in ("0.1", "-3", "1", "65504", "6e-8", "0", "1e-45", "2e308"):
        made = anatomy(text, name)
        if math.isfinite(made.value):
            held = getattr(np, name)(made.value)
            with np.errstate(over="ignore"):
                near = [
                    float(np.nextafter(held, held.dtype.type(e)))
                    for e in (-np.inf, np.inf)
                ]
            assert [made.below, made.above] == near


def test_parts_and_errors_of_numbers():
    found = anatomy("0.15625", "fp16")
    assert (found.sign, found.exponent, found.fraction) == ("0", "01100", "0100000000")
    assert (found.value, found.error, found.kind) == (0.15625, 0, "normal")
    tenth = anatomy("0.1", "bf16")
    assert tenth.error == Fraction(tenth.value) - Fraction(1, 10)
    assert tenth.relative_error == pytest.approx(0.00097656, rel=1e-4)
    assert anatomy("1e-7", "fp16").kind == "subnormal"
    assert anatomy("2.9e-8", "fp16").kind == "zero"
    assert anatomy("1e5", "fp16").kind == "infinite"
    assert anatomy("nan", "fp16").kind == "nan"
    assert anatomy("1e5", "fp16").error is None
    assert anatomy("nan", "float4_e2m1fn").code is None
    assert anatomy("-inf", "float4_e2m1fn").value == -6
    assert anatomy("1e-60", "float8_e8m0fnu").value == 2.0**-127
    assert math.isnan(anatomy("-1", "float8_e8m0fnu").value)


def test_a_decimal_is_not_rounded_before():
    # Half way between two float16 numbers but for the last digit, below any float64.
    text = "1.00048828125" + "0" * 40 + "1"
    assert anatomy(text, "float16").value == 1 + 2**-10
    assert anatomy("1.00048828125", "float16").value == 1
    assert anatomy("1/3", "float64").value == 1 / 3


def test_numbers_are_read_exactly():
    assert parse_number("0x1.4p-3").exact == Fraction(5, 32)
    assert parse_number("-0X.8P1").exact == -1
    assert parse_number("+.5e1").exact == 5
    assert parse_number("-0").negative
    assert parse_number(" INF ").exact is None
    assert {made.format.name for made in anatomies("1")} == set(FLOATS)
    assert [made.format.name for made in anatomies("1", ["e5m2", "half"])] == [
        *("float8_e5m2", "float16")
    ]


@pytest.mark.parametrize("text", ["", "one", "0x", "1e", "1/0", "1__0", "--1", "1 2"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(PromotionError, match="is no number; want a decimal such as"):
        parse_number(text)


def test_long_numbers_and_unknown_formats_are_refused():
    with pytest.raises(PromotionError, match="exponent of '1e999999999' is 999999999"):
        parse_number("1e999999999")
    for name in ("fp17", "int8", "complex64"):
        with pytest.raises(PromotionError, match=f"unknown float format {name!r}"):
            float_format(name)
    with pytest.raises(PromotionError, match="did you mean 'fp16'"):
        float_format("fp6")
    names = ("fp16", "F32", "bf16", "f8e4m3fn", "e4m3", "E3M4", "double")
    assert [float_format(name).name for name in names] == [
        *("float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e4m3fn"),
        *("float8_e3m4", "float64"),
    ]
