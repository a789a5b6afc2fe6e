import pytest

from amprewrite.dtypes import promote_types, result_type
from amprewrite.errors import PromotionError


def standard(*operands):
    return result_type(*operands, system="array-api").dtype


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (("uint8", "int8"), "int16"),
        (("float64", "complex64"), "complex128"),
        (("int8", 1), "int8"),
        (("float32", 1, 2.0), "float32"),
        (("float32", 1j), "complex64"),
        (("bool", True), "bool"),
    ],
)
def test_within_a_kind(operands, expected):
    assert standard(*operands) == expected


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (("int8", "float32"), "int8 and float32 have no common dtype"),
        (("uint64", "int8"), "uint64 and int8 have no common dtype"),
        (("bool", "int8"), "bool and int8 have no common dtype"),
        (("int8", 1.0), "int8 does not take a Python float"),
        (("bool", 1), "bool does not take a Python int"),
        ((1, 2.0), "found Python numbers only; want at least one array"),
    ],
)
def test_undefined(operands, message):
    with pytest.raises(PromotionError, match=message):
        standard(*operands)


def test_promote_types():
    assert promote_types("uint32", "int8", "array-api") == "int64"
