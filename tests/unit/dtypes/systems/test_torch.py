import pytest

from amprewrite.dtypes import Operand, promote_types, result_type
from amprewrite.errors import PromotionError


def zero_d(dtype):
    return Operand(dtype, ndim=0)


def torch(*operands, **options):
    return result_type(*operands, system="torch", **options).dtype


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (("bfloat16", "float16"), "float32"),
        (("bfloat16", zero_d("float32")), "bfloat16"),
        (("int8", zero_d("int64")), "int8"),
        (("int8", zero_d("float64")), "float64"),
        ((zero_d("int8"), zero_d("int64")), "int64"),
        (("int64", 1.0), "float32"),
        (("float16", 1j), "complex32"),
        (("bfloat16", 1j), "complex64"),
        (("bool", 1), "int64"),
        (("float8_e4m3fn", zero_d("float32")), "float8_e4m3fn"),
        (("uint16", 1j), "complex64"),
        (("uint16", "float16"), "float16"),
        (("int8", zero_d("int16"), 1.0), "float32"),
    ],
)
def test_categories(operands, expected):
    assert torch(*operands) == expected


def test_default_dtype():
    assert torch(1, 1.0, default_dtype="bfloat16") == "bfloat16"
    assert torch("int8", 1j, default_dtype="float16") == "complex32"
    with pytest.raises(PromotionError, match="default_dtype: 'int8'; want float16,"):
        torch(1, default_dtype="int8")


def test_the_order_counts_inside_a_category():
    assert torch("float32", "uint16", "uint32") == "float32"
    with pytest.raises(PromotionError, match="uint16 and uint32 have no common dtype"):
        torch("uint16", "uint32", "float32")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("uint16", "uint8"),
        ("uint16", "complex64"),
        ("float8_e4m3fn", "float32"),
        ("float8_e4m3fn", "bool"),
        ("int4", "float32"),
    ],
)
def test_undefined(a, b):
    with pytest.raises(PromotionError, match=f"{a} and {b} have no common dtype"):
        promote_types(a, b, "torch")


def test_no_complex_float8():
    with pytest.raises(PromotionError, match="float8_e5m2 has no complex counterpart"):
        torch("float8_e5m2", 1j)


def test_a_result_is_never_weak():
    assert not result_type(1.0, system="torch").weak
