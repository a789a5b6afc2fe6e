"""Arrays of any library are promoted to their common dtype."""

import itertools
from collections import namedtuple

import numpy as np
import pytest

from amprewrite.dtypes import promote_arrays, promote_types
from amprewrite.dtypes.arrays import dtype_of
from amprewrite.errors import ComplexTruncationError, PromotionError

Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # what users have
STANDARD = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def dtypes(*xs):
    return [dtype_of(x) for x in promote_arrays(*xs)]


@pytest.mark.parametrize(("a", "b"), [*itertools.product(STANDARD, repeat=2)])
def test_numpy_arrays_have_the_dtype_of_the_lattice(a, b):
    wanted = promote_types(a, b, x64=True)
    assert dtypes(np.ones(2, a), np.ones((3, 2), b)) == [wanted, wanted]


def test_values_are_kept_and_no_array_is_copied_without_need():
    x, y = np.arange(3, dtype="int32"), np.ones(3, "float32")
    found, same = promote_arrays(x, y)
    assert found.tolist() == [0.0, 1.0, 2.0]
    assert same is y


def test_numbers_are_weak_and_stay_numbers():
    assert promote_arrays(np.ones(2, "float16"), 2.5)[1] == 2.5
    assert dtypes_of_first(np.ones(2, "float16"), 2.5) == "float16"
    assert dtypes_of_first(np.ones(2, "int32"), 2.5) == "float32"
    assert dtypes_of_first(np.ones(2, "int64"), 2.5) == "float64"
    assert dtypes_of_first(np.ones(2, "float32"), 1j) == "complex64"
    assert dtypes_of_first(np.ones(2, "float16"), np.float64(1)) == "float64"
    assert promote_arrays(1, 2.5) == (1, 2.5)


def dtypes_of_first(*xs):
    return dtype_of(promote_arrays(*xs)[0])


def test_none_and_structure_pass():
    x, y = np.ones(2, "float16"), np.ones(2, "float64")
    tree = {"w": [x, None], "p": Pair(x, (y,))}
    found, nothing = promote_arrays(tree, None)
    assert nothing is None
    assert found["w"][1] is None
    assert isinstance(found["p"], Pair)
    assert dtype_of(found["w"][0]) == dtype_of(found["p"].b[0]) == "float64"
    assert promote_arrays(None) == (None,)
    assert promote_arrays() == ()


def test_a_dtype_may_be_asked_for():
    x, y = np.ones(2, "float16"), np.ones(2, "float64")
    found = promote_arrays(x, y, None, dtype="float32")
    assert [dtype_of(f) for f in found[:2]] == ["float32", "float32"]


def test_an_imaginary_part_is_not_dropped():
    with pytest.raises(ComplexTruncationError, match="complex64 to float32"):
        promote_arrays(np.ones(2, "complex64"), dtype="float32")
    (found,) = promote_arrays(np.ones(2, "float32"), dtype="complex64")
    assert dtype_of(found) == "complex64"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("text", "found a builtins.str"),
        (np.array(["a"]), "numpy.ndarray of dtype <U1"),
        (object(), "want arrays of numbers"),
    ],
)
def test_what_is_no_array_is_refused(wrong, message):
    with pytest.raises(PromotionError, match=message):
        promote_arrays(np.ones(2), wrong)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(PromotionError, match="float33"):
        promote_arrays(np.ones(2), dtype="float33")


def test_torch_tensors_are_promoted():
    torch = pytest.importorskip("torch")
    for a, b in itertools.product((*STANDARD, "bfloat16"), repeat=2):
        x = torch.ones(2, dtype=getattr(torch, a))
        y = torch.ones((), dtype=getattr(torch, b))  # a 0-d tensor is as strong
        wanted = promote_types(a, b, x64=True)
        assert dtypes(x, y) == [wanted, wanted]
    x = torch.ones(2, dtype=torch.int32)
    assert dtypes_of_first(x, 1.0) == "float32"
    x = torch.ones(2, requires_grad=True)
    promote_arrays(x, torch.ones(2).double())[0].sum().backward()
    assert x.grad is not None
    with pytest.raises(PromotionError, match="is not cast to uint16 here"):
        promote_arrays(x, dtype="uint16")
    mixed = promote_arrays(torch.ones(2).half(), np.ones(2, "float32"))
    assert [dtype_of(m) for m in mixed] == ["float32", "float32"]


def test_jax_arrays_are_promoted():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    names = ("bool", "uint8", "int32", "float16", "bfloat16", "float32", "complex64")
    for a, b in itertools.product(names, repeat=2):
        x, y = jnp.ones(2, a), jnp.ones(2, b)
        assert dtypes(x, y) == [str(jnp.promote_types(a, b))] * 2
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    found = promote_arrays(jnp.ones(2, "bfloat16"), weak)
    assert [str(f.dtype) for f in found] == ["bfloat16"] * 2
    assert not any(f.weak_type for f in found)
    jitted = jax.jit(lambda x, y: promote_arrays({"x": x}, y)[0]["x"])
    assert jitted(jnp.ones(2, "bfloat16"), jnp.ones(2, "float16")).dtype == "float32"
    with pytest.raises(PromotionError, match="key<fry>"):
        promote_arrays(jax.random.key(0))


def test_dtype_promotion_is_that_of_flax():
    jax = pytest.importorskip("jax")
    promote_dtype = pytest.importorskip("flax.linen.dtypes").promote_dtype
    jnp = jax.numpy
    for a, b in itertools.product(("float16", "bfloat16", "float32"), repeat=2):
        x, y = jnp.ones(2, a), jnp.ones(2, b)
        expected = promote_dtype(x, None, y)
        found = promote_arrays(x, None, y)
        assert found[1] is expected[1] is None
        assert found[0].dtype == expected[0].dtype == found[2].dtype
        forced = promote_arrays(x, y, dtype="bfloat16")
        assert [f.dtype for f in forced] == [
            f.dtype for f in promote_dtype(x, y, dtype=jnp.bfloat16)
        ]


def test_frameworks_are_not_mixed():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    with pytest.raises(PromotionError, match="found arrays of jax and torch"):
        promote_arrays(torch.ones(2), jax.numpy.ones(2))
