import subprocess
import sys
from pathlib import Path

import pytest

from amprewrite.dtypes import FORMATS, format_of, is_float, itemsize
from amprewrite.errors import AmpError, PromotionError

ROOT = Path(__file__).parents[3]


def test_float16():
    half = format_of("float16")
    assert (half.kind, half.bits, half.overflow) == ("float", 16, "inf")
    assert (half.exponent_bits, half.mantissa_bits, half.bias) == (5, 10, 15)
    assert (half.max, half.min) == (65504, -65504)
    assert half.smallest_normal == 2**-14
    assert half.smallest_subnormal == 2**-24
    assert half.precision == 11


def test_bfloat16_has_the_range_of_float32():
    brain, single = format_of("bfloat16"), format_of("float32")
    assert brain.smallest_normal == single.smallest_normal
    assert single.max / 1.004 < brain.max < single.max
    assert brain.bias == single.bias


@pytest.mark.parametrize(
    ("name", "largest", "overflow"),
    [
        ("float8_e4m3fn", 448, "nan"),
        ("float8_e5m2", 57344, "inf"),
        ("float4_e2m1fn", 6, "saturate"),
        ("int8", 127, "wrap"),
        ("bool", 1, "saturate"),
    ],
)
def test_overflow(name, largest, overflow):
    assert (FORMATS[name].max, FORMATS[name].overflow) == (largest, overflow)


def test_every_layout_fills_its_bits():
    for f in FORMATS.values():
        if f.kind == "float":
            sign = f.min < 0
            assert f.bits == sign + f.exponent_bits + f.mantissa_bits, f.name


def test_integers_are_exact():
    assert format_of("int64").max == 2**63 - 1
    assert format_of("int64").min == -(2**63)
    assert format_of("uint64").max == 2**64 - 1
    assert (format_of("uint8").min, format_of("int4").min) == (0, -8)


def test_a_scale_format_has_neither_sign_nor_zero():
    scale = format_of("float8_e8m0fnu")
    assert scale.min == scale.smallest_normal == scale.smallest_subnormal == 2.0**-127
    assert not scale.has_negative_zero


def test_negative_zero():
    assert format_of("float8_e4m3fn").has_negative_zero
    assert not format_of("float8_e4m3fnuz").has_negative_zero
    assert not format_of("int8").has_negative_zero


@pytest.mark.parametrize(
    ("name", "largest", "normal", "subnormal", "infinities", "nan"),
    [
        ("float8_e4m3fn", 448, -6, -9, False, 0x7F),
        ("float8_e4m3fnuz", 240, -7, -10, False, 0x80),
        ("float8_e5m2", 57344, -14, -16, True, 0x7E),
        ("float8_e5m2fnuz", 57344, -15, -17, False, 0x80),
    ],
)
def test_8_bits(name, largest, normal, subnormal, infinities, nan):
    found = format_of(name)
    assert (found.max, found.has_infinities, found.nan_bits) == (
        largest,
        infinities,
        nan,
    )
    assert found.smallest_normal == 2**normal
    assert found.smallest_subnormal == 2**subnormal


def test_formats_without_nan():
    assert not format_of("float4_e2m1fn").has_nan
    assert format_of("float16").nan_bits == 0x7E00
    with pytest.raises(PromotionError, match="float4_e2m1fn has no NaN"):
        _ = format_of("float4_e2m1fn").nan_bits


def test_a_complex_format_is_described_by_its_parts():
    pair = format_of("complex64")
    assert (pair.bits, pair.mantissa_bits) == (64, 23)
    assert pair.max == format_of("float32").max


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(PromotionError) as caught:
        format_of("bfloat61")
    assert isinstance(caught.value, AmpError)
    assert str(caught.value) == (
        "unknown dtype 'bfloat61'; want a name such as 'float32' or 'bfloat16' "
        "(did you mean 'bfloat16'?)"
    )


def test_an_unknown_name_far_from_all_gets_no_hint():
    with pytest.raises(PromotionError, match=r"'bfloat16'$"):
        format_of("?")


@pytest.mark.parametrize(
    ("name", "size"),
    [("bool", 1), ("int4", 1), ("bfloat16", 2), ("complex128", 16), ("key<fry>", 0)],
)
def test_itemsize(name, size):
    assert itemsize(name) == size


def test_is_float():
    assert is_float("bfloat16")
    assert is_float("float8_e5m2")
    assert not any(map(is_float, ["int32", "bool", "complex64", "key<fry>"]))


def test_importing_loads_no_framework():
    code = "import amprewrite.dtypes, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "amprewrite" in loaded
    assert not loaded & {"jax", "jaxlib", "ml_dtypes", "torch"}
