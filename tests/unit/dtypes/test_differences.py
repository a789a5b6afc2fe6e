import pytest

from amprewrite.dtypes import Operand, ResultType
from amprewrite.dtypes.differences import (
    DTYPES,
    JAX,
    JAX32,
    NUMPY,
    NUMPY1,
    TORCH,
    System,
    count,
    differences,
    grouped,
)

BARE = {"uint16", "uint32", "uint64"}


@pytest.mark.parametrize(
    ("systems", "pairs", "differing", "of"),
    [
        ((JAX, TORCH), "arrays", 27, 120),
        ((JAX32, TORCH), "arrays", 13, 66),
        ((JAX, JAX32), "arrays", 3, 66),
        ((JAX, TORCH), "zero_d", 54, 225),
        ((JAX, NUMPY), "arrays", 18, 105),
        ((TORCH, NUMPY), "arrays", 39, 105),
        ((JAX, JAX), "arrays", 0, 120),
        ((NUMPY, NUMPY1), "arrays", 0, 105),
        ((NUMPY, NUMPY1), "numbers", 0, 42),
    ],
)
def test_how_many_differ(systems, pairs, differing, of):
    assert len(differences(systems, pairs)) == differing
    assert count(systems, pairs) == of


@pytest.mark.parametrize("jax", [JAX, JAX32])
def test_jax_and_torch_differ_in_unsigned_integers_only(jax):
    for a, b, (ours, theirs) in differences((jax, TORCH), "arrays"):
        assert BARE & {a, b}
        assert theirs is None
        assert ours is not None


def test_numbers_differ_where_integers_meet_floats():
    found = differences((JAX, TORCH), "numbers")
    assert {(each.a, each.b) for each in found} == {
        *((a, b) for a in DTYPES[:9] for b in (1.0, 1j)),
        ("float16", 1j),
    }
    assert len(differences((JAX32, TORCH), "numbers")) == 2  # b1 + int, f16 + complex


def test_values_differ_in_numpy_1():
    found = {(x.a, x.b): x.results for x in differences((NUMPY, NUMPY1), "values")}
    assert [x and x.dtype for x in found["int8", 128]] == ["int8", "int16"]
    assert ("float64", 3.4e38) not in found
    ones = {(x.a, x.b) for x in differences((NUMPY, NUMPY1), "zero_d")}
    assert ("float32", Operand("float64", ndim=0, value=True)) in ones
    assert ("int8", Operand("float32", ndim=0, value=True)) not in ones


def test_groups_have_results_alike():
    groups = grouped(differences((JAX, TORCH), "arrays"))
    weak = (ResultType("float64", weak=True), None)
    assert groups[weak] == {"uint64": ["int8", "int16", "int32", "int64"]}
    assert sum(len(b) for group in groups.values() for b in group.values()) == 27


def test_a_system_knows_its_dtypes():
    assert set(DTYPES) - set(JAX32.dtypes) == {
        "int64",
        "uint64",
        "float64",
        "complex128",
    }
    assert set(DTYPES) - set(NUMPY.dtypes) == {"bfloat16"}
    assert System("array-api").result("float32", Operand("int8")) is None
    assert [x.title for x in (JAX, TORCH, System("jax-strict"))] == [
        *("JAX, 64 bits", "torch", "strict JAX, 32 bits"),
    ]
