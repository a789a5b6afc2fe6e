import pytest

from amprewrite.dtypes import Operand, promote_types, result_type


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (("bfloat16", "float16"), ("float32", False)),
        (("bfloat16", 1.0), ("bfloat16", False)),
        (("float8_e4m3fn", 2), ("float8_e4m3fn", False)),
        (("float8_e4m3fn", "int64"), ("float8_e4m3fn", False)),
        (("int8", 1.0), ("float32", True)),
        (("bool", 1), ("int32", True)),
        (("bool", True), ("bool", False)),
        ((1, 1.0), ("float32", True)),
        (("float64",), ("float32", False)),
        (("uint32", "int32"), ("int32", False)),
        (("float16", 1j), ("complex64", False)),
    ],
)
def test_32_bits(operands, expected):
    assert result_type(*operands) == expected


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (("uint32", "int32"), ("int64", False)),
        (("uint64", "int8"), ("float64", True)),
        (("int8", 1.0), ("float64", True)),
        (("int64", "bfloat16"), ("bfloat16", False)),
        ((Operand("uint8", weak=True),), ("uint64", True)),
        ((Operand("int16", weak=True), "int8"), ("int8", False)),
        (
            (Operand("int16", weak=True), Operand("uint64", weak=True)),
            ("float64", True),
        ),
    ],
)
def test_64_bits(operands, expected):
    assert result_type(*operands, x64=True) == expected


def test_rank_does_not_count():
    assert result_type("bfloat16", Operand("float32", ndim=0)).dtype == "float32"


def test_promote_types_narrows_nothing():
    assert promote_types("int64", "int32") == "int64"
    assert promote_types("uint64", "int8") == "float64"
    assert promote_types("uint32", "int32") == "int32"
    assert promote_types("uint32", "int32", x64=True) == "int64"


def test_strict_promotes_numbers_only():
    assert result_type("bfloat16", 1, system="jax-strict") == ("bfloat16", False)
    assert result_type(1, 1.0, system="jax-strict") == ("float32", True)
    assert promote_types("int8", "int8", "jax-strict") == "int8"
