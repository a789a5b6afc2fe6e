"""Which outputs replace which inputs."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.capture.trace import (
    Position,
    held_by,
    positions,
    replaced,
    split,
)

X = jnp.ones(2)


@jax.tree_util.register_pytree_node_class
class Holder:
    def __init__(self, *held):
        self.held = held

    def tree_flatten(self):
        return self.held, len(self.held)

    @classmethod
    def tree_unflatten(cls, _, held):
        return cls(*held)


def test_positions_stand_for_arrays_only():
    call, _ = split(({"a": X, "b": "static"}, [X, 3]))
    assert positions(call) == ({"a": Position(0), "b": "static"}, [Position(1), 3])


def test_arrays_at_the_same_path_replace_each_other():
    before = {"stats": {"mean": Position(0), "var": Position(1)}, "w": Position(2)}
    after = {"stats": {"var": Position(5), "new": Position(6)}, "w": 7}
    assert list(replaced(before, after)) == [(5, 1)]


def test_containers_of_one_structure_replace_each_other():
    before = ((Holder(Position(0)), Holder(Position(1), Position(2))), Position(3))
    after = [Position(0), {"s": Holder(Position(1), Position(2))}]
    assert list(held_by(Holder, before, after)) == [(1, 1), (2, 2)]
    assert list(held_by(Holder, before, [Position(0)])) == []
    assert list(held_by(Holder, (), after)) == []
