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
    assert as_operand(number) == Operand(dtype, ndim=0, weak=True)


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
