import math

import pytest

from amprewrite.dtypes import Operand
from amprewrite.dtypes.systems.numpy import Least, choices, least_int, least_of
from amprewrite.errors import PromotionError


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("bool", True, "bool"),
        ("int64", 300, "uint16"),
        ("int64", -129, "int16"),
        ("float64", 1.5, "float16"),
        ("float64", -65000.0, "float32"),
        ("float64", math.nan, "float16"),
        ("float64", 3.4e38, "float64"),
        ("float32", 3.401e38, "float32"),
        ("float32", 64999.9999, "float32"),  # the float32 is 65000
        ("float16", 65504.0, "float16"),
        ("complex128", 1j, "complex64"),
        ("complex128", complex(math.inf, 0), "complex128"),
        ("complex128", complex(0, math.nan), "complex128"),
        ("complex64", 1j, "complex64"),
    ],
)
def test_least_of(dtype, value, expected):
    assert least_of(dtype, value).dtype == expected


def test_a_positive_integer_may_be_signed_as_well():
    assert least_int(127) == Least("uint8", either=True)
    assert least_int(127).signed == "int8"
    assert least_int(128) == Least("uint8")
    assert least_int(128).signed == "uint8"
    with pytest.raises(PromotionError, match="no integer dtype holds 18446744073709"):
        least_int(2**64)


def test_an_unknown_value_has_choices():
    assert {x.dtype for x in choices(Operand("float64", ndim=0))} == {
        *("float16", "float32", "float64"),
    }
    assert choices(Operand("int8", ndim=0)) == {
        *(Least("uint8", either=True), Least("int8")),
    }
    assert choices(Operand("int64", ndim=0, value=3)) == {Least("uint8", either=True)}
