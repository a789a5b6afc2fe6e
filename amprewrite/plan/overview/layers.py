"""Names of rows in which the repeated blocks of a stack stand together."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amprewrite.plan.model import Plan

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

Rows = Mapping[str, tuple[str, str]]
"""The row of each module path, and the block or module that it counts as."""


def row_names(plan: "Plan") -> dict[str, str]:
    """Return the row of each module path, in program order.

    Numbers in a path become ``*``, so that the layers of a stack share their rows:
    ``layer.3.norm`` is in ``layer.*.norm``. Modules that end in a number share a row
    only if all of them run the same ops, as layers do and the parts of an
    ``nn.Sequential`` do not.
    """
    ops: dict[str, list[str]] = {}
    for decision in plan.decisions:
        ops.setdefault(decision.path, []).append(decision.canonical)
    for cast in plan.casts:
        ops.setdefault(cast.path, [])
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path, names in ops.items():
        kinds[_NUMBER.sub("*", path)].add(tuple(names))

    def row(path: str) -> str:
        starred = _NUMBER.sub("*", path)
        if not starred.endswith("*") or len(kinds[starred]) == 1:
            return starred
        front, dot, number = path.rpartition(".")
        return _NUMBER.sub("*", front) + dot + number

    return {path: row(path) for path in ops}


def layer_rows(plan: "Plan", below: int = 0) -> Rows:
    """Return the row of each module path, in program order, with blocks rolled up.

    All that is in the outermost blocks of a stack shares one row: ``layer.3.norm`` is
    in ``layer.*``. A block that is the only one of its stack keeps its number.

    Args:
        plan: The plan.
        below: Levels of modules inside of a block that have rows of their own: with 1,
            ``layer.3.attention.self`` is in ``layer.*.attention``. A module outside
            of a stack is rolled up to as many levels, with 0 it is not.
    """
    found: dict[str, tuple[str, str]] = {}
    for path, name in row_names(plan).items():
        parts = name.split(".")
        inside = parts.index("*") + 1 + below if "*" in parts else below or None
        block = ".".join(path.split(".")[:inside])
        found[path] = ".".join(parts[:inside]), block
    blocks = Counter(name for name, _ in set(found.values()))
    return {
        path: (name if blocks[name] > 1 else block, block)
        for path, (name, block) in found.items()
    }
