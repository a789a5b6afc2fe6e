import pytest

from amprewrite.dtypes import Operand, promote_types, result_type
from amprewrite.dtypes.systems.numpy import as_array, counts_values
from amprewrite.errors import PromotionError


def numpy1(*operands):
    return result_type(*operands, system="numpy1").dtype


def zero_d(dtype, value=None):
    return Operand(dtype, ndim=0, value=value)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        # The examples of numpy.result_type, numpy 1.26.
        ((3, "int8"), "int8"),
        (("int32", "complex64"), "complex128"),
        ((3.0, -2), "float64"),
        # The table of NEP 50, its column of the old behaviour.
        ((zero_d("uint8", 1), 2), "int64"),
        (("uint8", zero_d("int64", 1)), "uint8"),
        (("float32", zero_d("float64", 0.1)), "float32"),
        (("uint8", 1), "uint8"),
        (("uint8", zero_d("int64", 300)), "uint16"),
        ((zero_d("uint8", 1), 300), "int64"),
        (("uint8", 300), "uint16"),
        ((zero_d("float32", 1.0), 3e100), "float64"),
        (("float32", 3e100), "float64"),
        (("float32", 1e-14), "float32"),
        # Signed or unsigned.
        (("int8", 127), "int8"),
        (("int8", 128), "int16"),
        (("uint8", -1), "int16"),
        (("int8", 5, zero_d("uint8", 200)), "int16"),
        # A float that an integer of 16 bits widens; the limit of float16 is 65000.
        (("float16", 300), "float32"),
        (("float16", 64999.0), "float16"),
        (("float16", 65000.0), "float32"),
        (("float16", float("inf")), "float16"),
        # Floats and complex numbers are of one kind, integers below.
        (("float16", 3j), "complex64"),
        (("int8", zero_d("float32", 3.0)), "float32"),
        (("int8", 3j), "complex128"),
        (("bool", 3), "int64"),
        # The order decides where values count, as each pair is joined in turn.
        (("uint8", "int8", "float16", zero_d("int8", 3)), "float32"),
        (("float16", "uint8", "int8", zero_d("int8", 3)), "float16"),
        (("uint8", "int8", "float16"), "float16"),
        ((2**63,), "uint64"),
        ((2**63, 1), "float64"),
    ],
)
def test_result_type(operands, expected):
    assert numpy1(*operands) == expected


def test_arrays_promote_as_in_numpy_2():
    assert promote_types("uint8", "int8", "numpy1") == "int16"
    assert numpy1("uint8", "int8", "float16") == "float16"
    with pytest.raises(PromotionError, match="no bfloat16 in system 'numpy1'; cast it"):
        promote_types("bfloat16", "float32", "numpy1")


def test_a_value_that_decides_must_be_known():
    with pytest.raises(PromotionError) as caught:
        numpy1("float32", zero_d("float64"))
    assert str(caught.value) == (
        "result_type(float32, 0-d float64): float32 or float64, which the unknown "
        "value of 0-d float64 decides in system 'numpy1'; cast one of them, or give a "
        "value: Operand(..., value=...)"
    )
    assert numpy1("float64", zero_d("float32")) == "float64"
    assert numpy1("int8", zero_d("float64")) == "float64"


def test_an_integer_that_no_dtype_holds():
    for operands in [(2**64,), ("float32", -(2**63) - 1), ("int8", 2**64)]:
        with pytest.raises(PromotionError, match=r"no integer dtype holds .* object"):
            numpy1(*operands)


def test_values_count_beside_arrays_of_their_kind_or_above():
    assert counts_values([Operand("int8"), zero_d("int64")])
    assert counts_values([Operand("float16"), zero_d("complex128")])
    assert not counts_values([Operand("int8"), zero_d("float16")])
    assert not counts_values([zero_d("int8"), zero_d("int64")])
    assert not counts_values([Operand("int8"), Operand("int64")])


def test_a_number_is_a_0d_array():
    number = Operand("float32", ndim=0, weak=True, value=2.0)
    assert as_array(number) == zero_d("float64", 2.0)
    assert as_array(Operand("int8")) == Operand("int8")
