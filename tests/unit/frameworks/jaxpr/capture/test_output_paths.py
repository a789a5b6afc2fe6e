"""Outputs are named by their paths."""

from typing import NamedTuple

import pytest

pytest.importorskip("jax")

import numpy as np

from amprewrite.frameworks.jaxpr.capture.trace import named_arrays

ONE = np.ones(1)


class Pair(NamedTuple):
    left: object
    right: object


def test_one_array_is_the_output():
    assert list(named_arrays(ONE)) == ["output"]


def test_paths_hold_keys_positions_and_fields():
    tree = {"a": [ONE, (ONE,)], "b": Pair(ONE, {"c": ONE})}
    assert list(named_arrays(tree)) == ["a.0", "a.1.0", "b.left", "b.right.c"]


def test_what_is_no_array_has_no_name():
    assert list(named_arrays((ONE, "text", None, 3))) == ["0"]
