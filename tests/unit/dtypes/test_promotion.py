from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.dtypes import (
    FORMATS,
    SYSTEMS,
    Operand,
    at_least,
    format_of,
    promote_types,
    result_type,
)
from amprewrite.errors import PromotionError

names = st.sampled_from(sorted(FORMATS))
systems = st.sampled_from(SYSTEMS)
operands = st.one_of(
    st.builds(Operand, names, st.sampled_from([0, 1]), st.booleans()),
    st.sampled_from([True, 1, 1.0, 1j]),
)


def result_or_none(*given, **options):
    try:
        return result_type(*given, **options)
    except PromotionError:
        return None


def promoted_or_none(a, b, system, **options):
    try:
        return promote_types(a, b, system, **options)
    except PromotionError:
        return None


def test_a_result_is_a_pair():
    dtype, weak = result_type("bfloat16", 1.0)
    assert (dtype, weak) == ("bfloat16", False)
    assert result_type(2.0).weak


def test_an_undefined_pair_says_what_where_and_how_on():
    with pytest.raises(TypeError) as caught:
        result_type("float8_e4m3fn", Operand("bfloat16", ndim=0), 1.0)
    assert str(caught.value) == (
        "result_type(float8_e4m3fn, 0-d bfloat16, weak float64): float8_e4m3fn and "
        "bfloat16 and float* have no common dtype in system 'jax'; cast one of them: "
        "8-bit floats and all below 8 bits are never widened implicitly, and in strict "
        "mode nothing is"
    )
    assert isinstance(caught.value, PromotionError)
    with pytest.raises(PromotionError, match=r"^promote_types\(int8, int16\): int8 an"):
        promote_types("int8", "int16", "jax-strict")


def test_a_dtype_that_the_system_has_not():
    with pytest.raises(PromotionError, match="no bfloat16 in system 'numpy'; cast it"):
        result_type("bfloat16", system="numpy")
    with pytest.raises(PromotionError, match="no complex32 in system 'jax'"):
        promote_types("complex32", "float32")


def test_an_unknown_system():
    with pytest.raises(
        PromotionError, match=r"want jax, .* \(did you mean 'torch'\?\)"
    ):
        result_type("int8", system="troch")


def test_an_unknown_dtype():
    with pytest.raises(PromotionError, match="did you mean 'float32'"):
        promote_types("flaot32", "int8")


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_operands(system):
    with pytest.raises(PromotionError, match="want at least one operand"):
        result_type(system=system)


@given(names, names, systems, st.booleans())
def test_promotion_is_commutative_and_idempotent(a, b, system, x64):
    def promoted(a, b):
        return promoted_or_none(a, b, system, x64=x64)

    joined = promoted(a, b)
    assert joined == promoted(b, a)
    assert promoted(a, a) in (a, None)
    if joined is not None and (system, joined) != ("jax", "float64"):
        assert promoted(a, joined) == joined  # jax: uint64 and int8 are a weak float64


@given(names, names, names)
def test_promotion_in_jax_is_associative(a, b, c):
    joined = {result_or_none(*order, x64=True) for order in permutations((a, b, c))}
    assert len(joined) == 1


@given(st.lists(operands, min_size=1, max_size=4), systems, st.booleans())
def test_a_result_is_a_dtype_of_the_system(given, system, x64):
    result = result_or_none(*given, system=system, x64=x64)
    if result is None:
        return
    assert format_of(result.dtype)
    assert not result.weak or system.startswith("jax")
    if system.startswith("jax") and not x64:
        assert result.dtype not in {"int64", "uint64", "float64", "complex128"}
    if not result.weak:
        assert result_or_none(result.dtype, system=system, x64=x64) == result


@given(names, names, systems)
def test_promote_types_is_result_type_of_two_arrays(a, b, system):
    if system.startswith("jax"):  # there promote_types narrows nothing
        return
    result = result_or_none(a, b, system=system)
    assert promoted_or_none(a, b, system) == (result and result.dtype)


@pytest.mark.parametrize(
    ("dtype", "minimum", "expected"),
    [
        ("float16", "float32", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float8_e4m3fn", "float32", "float32"),
        ("float64", "float32", "float64"),
        ("complex64", "float32", "complex64"),
        ("int32", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("uint32", "int32", "int64"),
        ("float32", "float32", "float32"),
    ],
)
def test_at_least(dtype, minimum, expected):
    assert at_least(dtype, minimum) == expected
