"""Modules of a program as nested groups."""

from amprewrite.page.data import FIRST_SIGHT, MOST_CHILDREN, group_nodes, opened
from amprewrite.page.model import Node


def nodes(*paths: str) -> list[Node]:
    return [Node(f"op{i}", "mul", "float32", path) for i, path in enumerate(paths)]


def inside(found, node):
    """The labels of the groups around a node, the outermost first."""
    groups, of, _ = found
    names: list[str] = []
    at = of[node]
    while at is not None:
        names.insert(0, groups[at].label)
        at = groups[at].parent
    return names


def test_modules_are_nested_and_parents_precede() -> None:
    found = group_nodes(nodes("a.x", "a.x", "a.y", "a.y", "b", ""))
    assert [inside(found, i) for i in range(4)] == [["a", "x"]] * 2 + [["a", "y"]] * 2
    groups = found[0]
    assert all(g.parent is None or g.parent < i for i, g in enumerate(groups))
    assert [g.path for g in groups] == ["a", "a.x", "a.y"]


def test_a_module_with_one_member_is_replaced_by_it() -> None:
    found = group_nodes(nodes("a.b.x", "a.b.x", "a.b.y", "c.d"))
    assert [inside(found, i) for i in range(4)] == [["a.b", "x"]] * 2 + [["a.b"], []]
    assert found[2] == ("mul", "mul", "y mul", "c.d mul")


def test_many_members_are_split_into_ranges() -> None:
    found = group_nodes(nodes(*[""] * 5000, "m.x", "m.x"))
    groups, of, _ = found
    sizes = [0] * (len(groups) + 1)
    for parent in (*of, *(group.parent for group in groups)):
        sizes[-1 if parent is None else parent] += 1
    assert max(sizes) <= MOST_CHILDREN
    assert inside(found, 0)[-1] == "op 1 to op 40"
    layers = nodes(*(f"layer.{i // 2}" for i in range(200)))
    assert inside(group_nodes(layers), 199)[1] == "68 to 99"


def test_ops_without_a_precision_to_choose_are_one_group() -> None:
    quiet = [Node(f"q{i}", "add", "int64", "m", quiet=True) for i in range(5)]
    found = group_nodes([*quiet, *nodes("m", "m")])
    assert inside(found, 0) == ["m", "integers and masks"]
    assert inside(found, 5) == ["m"]
    groups, of, _ = found
    assert [groups[i].label for i in opened(groups, of)] == ["m"]
    assert inside(group_nodes([*quiet[:3], *nodes("m")]), 0) == ["m"], (
        "few are no group"
    )
    assert inside(group_nodes(quiet), 0) == ["m"], "nothing else is there"


def test_levels_are_opened_while_they_fit() -> None:
    layers = nodes(*(f"m.{i // 6}.{i % 6 // 3}" for i in range(90)))
    groups, of, _ = group_nodes([*layers, *nodes("m.norm")])
    seen = {groups[i].path for i in opened(groups, of)}
    assert seen == {"m"}, "15 layers of two parts are too many"
    assert {groups[i].path for i in opened(groups, of, 40)} == {
        "m",
        *(f"m.{i}" for i in range(15)),
    }
    small, of, _ = group_nodes(layers[:12])
    assert len(opened(small, of)) == len(small)
    one, of, _ = group_nodes(nodes(*["a"] * (FIRST_SIGHT + 5)))
    assert opened(one, of) == (0,)
