import pytest

from amprewrite.dtypes.processor import as_float, is_whole, widened
from amprewrite.errors import PromotionError


def test_whole_is_bool_or_integer():
    assert [
        is_whole(x) for x in ("bool", "uint8", "int64", "bfloat16", "complex64")
    ] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize(
    ("system", "floats"),
    [
        ("torch", ["float32", "float32", "float32"]),
        ("jax", ["float32", "float32", "float64"]),
        ("jax-strict", ["float32", "float32", "float64"]),
        ("numpy", ["float16", "float32", "float64"]),
        ("numpy1", ["float16", "float32", "float64"]),
    ],
)
def test_a_float_of_an_integer(system, floats):
    assert [as_float(x, system) for x in ("bool", "int16", "uint64")] == floats
    assert as_float("bfloat16", "torch") == "bfloat16"


def test_torch_makes_the_default_dtype():
    assert as_float("int8", "torch", "bfloat16") == "bfloat16"


@pytest.mark.parametrize(
    ("system", "sums"),
    [
        ("torch", ["int64", "int64", "int64", "int64"]),
        ("jax", ["int64", "int64", "uint64", "int64"]),
        ("numpy", ["int64", "int64", "uint64", "int64"]),
        ("numpy1", ["int64", "int64", "uint64", "int64"]),
    ],
)
def test_integers_are_summed_wide(system, sums):
    given = ("bool", "int8", "uint32", "int64")
    assert [widened(x, "int64", system) for x in given] == sums
    assert widened("float16", "int64", system) == "float16"
    assert widened("int64", "int32", "numpy") == "int64"


def test_the_array_api_wants_it_explicit():
    with pytest.raises(PromotionError, match="found int8; want floats"):
        as_float("int8", "array-api")
    with pytest.raises(PromotionError, match="found bool; want numbers"):
        widened("bool", "int64", "array-api")
    assert widened("uint8", "int64", "array-api") == "uint64"
