"""Paths and containers of pytrees."""

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.compat import pytrees


def test_leaves_have_paths_and_containers_types() -> None:
    tree = {"a": [1, (2, 3)]}
    assert dict(pytrees.leaves_by_path(tree))["['a'][1][0]"] == 2
    assert pytrees.node_types(tree) == {dict, list, tuple}
