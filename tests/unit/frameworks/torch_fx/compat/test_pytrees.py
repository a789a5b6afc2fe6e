"""Structures of values, of arguments and of the calls of graphs."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.torch_programs import graph_of

aten = torch.ops.aten


def test_leaves_have_paths_and_containers_types() -> None:
    tree = {"a": [1, (2, 3)]}
    assert dict(pytrees.leaves_by_path(tree))["['a'][1][0]"] == 2
    assert pytrees.node_types(tree) == {dict, list, tuple}
    (path, _), *_ = torch.utils._pytree.tree_flatten_with_path(tree)[0]
    assert pytrees.keystr(path) == "['a'][0]"


def test_trees_are_mapped_flattened_and_built_again() -> None:
    tree = {"a": [1, (2, None)], "b": 3}
    leaves, structure = pytrees.pytree.tree_flatten(tree)
    assert pytrees.pytree.tree_leaves(tree) == leaves
    assert pytrees.pytree.tree_unflatten(leaves, structure) == tree
    doubled = pytrees.pytree.tree_map(lambda n: n and 2 * n, tree)
    assert doubled == {"a": [2, (4, None)], "b": 6}


def test_sequences_are_lists_and_tuples() -> None:
    assert pytrees.is_sequence([1])
    assert pytrees.is_sequence(())
    assert not pytrees.is_sequence("ab")


def test_arguments_and_the_structure_of_a_call_are_read() -> None:
    graph = graph_of(lambda _, x: torch.add(x, 2.0)).graph
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert pytrees.positional(add)[1] == 2.0
    args, kwargs = pytrees.call_structure(graph).in_spec.children()
    assert (args.num_children, kwargs.context) == (1, [])
    assert pytrees.call_structure(torch.fx.Graph()) is None


def test_how_a_graph_is_called_can_be_set() -> None:
    structure: Any = {"a": (0, [None, 1]), "b": 2}
    inside, outside = (((0, 1), {}), structure)
    specs = [pytrees.pytree.tree_flatten(one)[1] for one in (inside, outside)]
    graph = torch.fx.Graph()
    parts = [pytrees.structure_of(spec) for spec in specs]
    pytrees.set_call_structure(graph, ["x", "y"], *parts)
    assert list(pytrees.call_structure(graph)) == [["x", "y"], *specs]


def test_arguments_are_mapped_part_by_part() -> None:
    arguments = ([1, slice(2, 3)], {"a": (None,)})
    assert pytrees.map_arguments(arguments, str) == (
        ["1", slice("2", "3", "None")],
        {"a": ("None",)},
    )


def test_a_tree_is_flattened_by_the_structure_that_it_has() -> None:
    tree = ([1, {"a": 2, "b": (3,)}], {})
    structure = pytrees.pytree.tree_flatten(tree)[1]
    assert pytrees.flatten_by(([1, {"b": (3,), "a": 2}], {}), structure) == [1, 2, 3]
