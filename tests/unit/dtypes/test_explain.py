import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.dtypes import FORMATS, SYSTEMS, Operand, result_type
from amprewrite.dtypes.explain import explain
from amprewrite.errors import PromotionError

operands = st.one_of(
    st.builds(
        Operand, st.sampled_from(sorted(FORMATS)), st.integers(0, 1), st.booleans()
    ),
    st.sampled_from([True, 1, 1.0, 1j, -1, 128, 40000, 7e4, 1e39]),
)


def why(*given, **options):
    return explain(*given, **options)[1]


def test_jax_climbs_its_lattice():
    assert why("bfloat16", "float16") == ["bfloat16 -> float32", "float16 -> float32"]
    assert why("float32", "float32") == ["all are float32"]
    assert why("int32", 1.0) == [
        "a weak float is float*",
        "int32 -> int64 -> float*",
        "float* alone is weak float32",
    ]
    assert why(1, 2.0) == ["all are weak, so that the result is weak float32"]


def test_jax_narrows_first():
    assert why("int64", "uint32") == [
        "int64 is int32: 64 bits are disabled",
        "uint32 -> int32",
    ]
    assert why("int64", "uint32", x64=True) == ["uint32 -> int64"]


def test_torch_asks_for_the_kind_first():
    assert why("float16", Operand("float64", ndim=0), system="torch") == [
        "arrays make float16",
        "0-d tensors make float64",
        "0-d tensors are of no higher kind: they adapt to arrays",
        "together float16",
    ]
    assert "numbers are of a higher kind: they lift arrays" in why(
        "int8", 1.0, system="torch"
    )
    assert why("int8", "uint8", system="torch") == [
        *("int8 -> int16", "uint8 -> int16", "arrays make int16"),
    ]


def test_numpy_and_the_array_api_count_kinds_of_numbers():
    assert why("int32", 1.0, system="numpy") == [
        "a Python float counts by its kind only",
        "int32 -> float64",
    ]
    assert why("float32", 1, system="array-api") == [
        "a Python int counts by its kind only",
        "float32 is of that kind or a higher one: it stays",
        "all arrays are float32",
    ]
    assert why(1, system="numpy")[-1] == "alone it is int64"


def test_numpy_1_asks_for_the_value():
    assert why("int8", 300, system="numpy1") == [
        "0-d int64 of value 300 counts as uint16 or int16",
        "int8 -> int16",
    ]
    assert why("float16", 70000.0, system="numpy1") == [
        "0-d float64 of value 70000.0 counts as float32",
        "float16 -> float32",
    ]
    assert why("float64", Operand("float32", ndim=0), system="numpy1") == [
        "0-d float32: every value of it makes float64",
        "all are float64",
    ]
    assert why("int8", 1.0, system="numpy1") == [
        "a scalar is of a higher kind than the arrays: all count by dtype",
        "int8 -> int16 -> int32 -> float64",
    ]
    assert why(Operand("int8", ndim=0), 1, system="numpy1")[0] == (
        "all are scalars: they count by dtype"
    )


@given(
    st.lists(operands, min_size=1, max_size=4), st.sampled_from(SYSTEMS), st.booleans()
)
def test_there_is_always_a_reason(given, system, x64):
    try:
        want = result_type(*given, system=system, x64=x64)
    except PromotionError:
        with pytest.raises(PromotionError, match=r"^result_type"):
            explain(*given, system=system, x64=x64)
        return
    result, lines = explain(*given, system=system, x64=x64)
    assert result == want
    assert lines
    assert len(set(lines)) == len(lines)
