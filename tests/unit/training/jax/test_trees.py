"""Trees: finiteness, selection bit by bit, float arrays and the rest, names."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.training.jax.trees import (
    all_finite,
    combine,
    finite_leaves,
    is_inexact,
    is_inexact_array,
    is_traced,
    name_of_leaf,
    partition,
    select_tree,
)

TREE = {
    "a": jnp.arange(3.0),
    "b": [jnp.arange(3), "text", None],
    "c": jnp.zeros((2, 2), jnp.bfloat16),
    "d": 0.5,
}


def test_finite():
    assert all_finite(TREE)
    assert all_finite({})
    assert all_finite({"count": jnp.arange(3), "name": "text"})
    for value in (jnp.inf, -jnp.inf, jnp.nan):
        assert not all_finite({**TREE, "c": jnp.full((2, 2), value, jnp.bfloat16)})
        assert not all_finite({**TREE, "d": value})


def test_which_leaf_is_not_finite():
    flags = finite_leaves({**TREE, "c": jnp.full(3, jnp.nan)})
    assert flags.tolist() == [True, False, True]


def test_finite_over_a_mapped_axis():
    x = jnp.ones((4, 2)).at[2, 1].set(jnp.inf)
    assert jax.vmap(all_finite)(x).tolist() == [True, True, False, True]
    over_all = jax.vmap(lambda v: all_finite(v, "d"), axis_name="d")
    assert over_all(x).tolist() == [False] * 4
    assert over_all(jnp.ones((4, 2))).tolist() == [True] * 4


def test_floats():
    assert is_inexact(1.0)
    assert not is_inexact_array(1.0)
    assert is_inexact_array(np.ones(2, np.float16))
    assert is_inexact_array(jnp.ones(2, jnp.complex64))
    for other in (1, True, None, "text", jnp.arange(2), jax.random.key(0), jax.nn.relu):
        assert not is_inexact(other)


def test_select_keeps_every_bit():
    nan = np.array([0x7FC00123], np.uint32).view(np.float32)
    ours = {"x": jnp.asarray(nan), "n": jnp.int8([3]), "k": jax.random.key(1)}
    theirs = {"x": jnp.float32([-0.0]), "n": jnp.int8([4]), "k": jax.random.key(2)}
    for pred, want in ((True, ours), (False, theirs)):
        found = jax.jit(select_tree)(pred, ours, theirs)
        assert np.asarray(found["x"]).tobytes() == np.asarray(want["x"]).tobytes(), pred
        assert found["n"] == want["n"]
        assert jnp.array_equal(
            jax.random.key_data(found["k"]), jax.random.key_data(want["k"])
        )


def test_select_takes_numbers_too_and_other_leaves_from_the_first():
    found = select_tree(jnp.bool_(False), {"step": 3, "f": max}, {"step": 2, "f": max})
    assert found["step"] == 2
    seen = []
    jax.jit(lambda p: seen.append(select_tree(p, {"n": False}, {"n": False})))(True)
    assert seen == [{"n": False}]
    assert found["f"] is max
    assert select_tree(True, np.float32(1), np.float32(2)) == 1


def test_select_refuses_other_dtypes_and_shapes():
    with pytest.raises(
        ValueError, match=r"leaf \['w'\] is float32\[2\].*bfloat16\[2\]"
    ):
        select_tree(True, {"w": jnp.ones(2)}, {"w": jnp.ones(2, jnp.bfloat16)})
    with pytest.raises(ValueError, match=r"at the root is float32\[\].*float32\[1\]"):
        select_tree(True, jnp.ones(()), jnp.ones(1))


@pytest.mark.parametrize("pred", [1, jnp.ones(2, bool), jnp.float32(1)])
def test_select_wants_a_bool_scalar(pred):
    with pytest.raises(
        ValueError, match=r"select_tree: pred is .*; want a bool scalar"
    ):
        select_tree(pred, {}, {})


def test_partition_and_back():
    kept, rest = partition(TREE)
    assert set(map(id, jax.tree.leaves(kept))) == {id(TREE["a"]), id(TREE["c"])}
    assert rest["d"] == 0.5
    whole = combine(kept, rest)
    assert jax.tree.structure(whole) == jax.tree.structure(TREE)
    pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(TREE), strict=True)
    assert all(one is other for one, other in pairs)


def test_names():
    assert [name_of_leaf(TREE, i) for i in (0, 1, 2, -1)] == ["a", "c", "", ""]
    assert name_of_leaf({"layers": [{"w": jnp.ones(1)}]}, 0) == "layers.0.w"
    assert name_of_leaf(jnp.ones(1), 0) == "the parameter"


def test_traced():
    seen = []
    jax.jit(lambda x: seen.append(is_traced({"x": x})))(jnp.ones(1))
    assert seen == [True]
    assert not is_traced(TREE)
