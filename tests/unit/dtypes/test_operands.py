import pytest

from amprewrite.dtypes import Operand
from amprewrite.dtypes.operands import as_operand
from amprewrite.errors import PromotionError


def test_a_name_is_a_strong_array():
    assert as_operand("bfloat16") == Operand("bfloat16", ndim=1, weak=False)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(True, "bool"), (1, "int64"), (1.0, "float64"), (1j, "complex128")],
)
def test_a_python_number_is_weak(number, dtype):
    assert as_operand(number) == Operand(dtype, ndim=0, weak=True, value=number)
    assert as_operand(number) != Operand(dtype, ndim=0, weak=True)


def test_operands_pass():
    operand = Operand("float16", ndim=0)
    assert as_operand(operand) is operand


def test_operands_print_what_is_special():
    given = [Operand("int8"), Operand("int8", ndim=0), Operand("int8", weak=True)]
    assert [str(x) for x in given] == ["int8", "0-d int8", "weak int8"]


def test_signed_and_unsigned_are_one_kind():
    assert Operand("uint8").kind == Operand("int8").kind == "int"


def test_an_unknown_dtype_is_refused_at_once():
    with pytest.raises(PromotionError, match="did you mean 'float32'"):
        Operand("flaot32")


@pytest.mark.parametrize("value", [None, [1.0], float])
def test_anything_else_is_refused(value):
    with pytest.raises(PromotionError, match="want a dtype name, a Python bool"):
        as_operand(value)


def test_a_numpy_scalar_is_no_python_number():
    np = pytest.importorskip("numpy")
    with pytest.raises(PromotionError, match=r"found numpy\.float64"):
        as_operand(np.float64(1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int8", "value": 1}, "and rank 1; want ndim=0"),
        ({"dtype": "int8", "ndim": 0, "value": 300}, "want one that int8 holds"),
        ({"dtype": "int8", "ndim": 0, "value": 1.0}, "of kind float; want kind int"),
        ({"dtype": "bool", "ndim": 0, "value": 1}, "of kind int; want kind bool"),
        ({"dtype": "float16", "ndim": 0, "value": 1e5}, "want one that float16 holds"),
        ({"dtype": "complex64", "ndim": 0, "value": 1e39j}, "that complex64 holds"),
        ({"dtype": "float32", "ndim": 0, "value": 10**400}, "that float32 holds"),
        ({"dtype": "float64", "ndim": 0, "weak": True, "value": 1}, "want kind float"),
        ({"dtype": "float32", "ndim": 0, "value": "1"}, "want a Python number"),
    ],
)
def test_a_value_that_an_operand_cannot_have(options, says):
    with pytest.raises(PromotionError, match=says):
        Operand(**options)


@pytest.mark.parametrize("value", [True, 1, 1.5, float("inf"), float("nan")])
def test_a_value_that_it_can_have(value):
    assert Operand("float16", ndim=0, value=value).value is value


def test_an_integer_of_python_is_of_any_size():
    assert as_operand(2**70).value == 2**70
