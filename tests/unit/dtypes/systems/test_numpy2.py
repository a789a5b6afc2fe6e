import pytest

from amprewrite.dtypes import Operand, promote_types, result_type


def numpy(*operands):
    return result_type(*operands, system="numpy").dtype


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (("int16", "float16"), "float32"),
        (("int32", "float32"), "float64"),
        (("uint64", "int8"), "float64"),
        (("int32", "complex64"), "complex128"),
        (("uint8", "int8", "float16"), "float16"),  # not float32, as a left fold gives
        (("int8", 1.0), "float64"),
        (("float16", 1.0), "float16"),
        (("float16", 1j), "complex64"),
        (("bool", 1), "int64"),
        (("int8", True), "int8"),
        ((1, 1j), "complex128"),
        ((True,), "bool"),
        (("float32", Operand("float64", ndim=0)), "float64"),
    ],
)
def test_result_type(operands, expected):
    assert numpy(*operands) == expected


def test_promote_types():
    assert promote_types("uint8", "int8", "numpy") == "int16"
    assert promote_types("uint16", "float16", "numpy") == "float32"
