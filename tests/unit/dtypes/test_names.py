import pytest

from amprewrite.dtypes import FORMATS, from_short_name, short_name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("bool", "b1"),
        ("bfloat16", "bf16"),
        ("float32", "f32"),
        ("uint8", "u8"),
        ("complex64", "c64"),
        ("float8_e4m3fn", "f8e4m3fn"),
        ("float4_e2m1fn", "f4e2m1fn"),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short
    assert from_short_name(short) == name


def test_short_names_are_unique_and_lead_back():
    shorts = {short_name(name): name for name in FORMATS}
    assert len(shorts) == len(FORMATS)
    assert all(from_short_name(short) == name for short, name in shorts.items())


def test_other_names_stay():
    assert short_name("key<fry>") == "key<fry>"
    assert from_short_name("key<fry>") == "key<fry>"
