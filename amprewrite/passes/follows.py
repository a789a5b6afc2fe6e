"""Which values a cast follows that takes its dtype from others: ``y.to(x.dtype)``.

A second trace tells that a cast follows, not whom. ``type_as`` says it; otherwise the
cast ends a stretch in full precision that the model opened itself (``x.float()``, or
``softmax(..., dtype=float32)``), and what it goes back to is the dtype of what entered.
A cast that ends no such stretch follows what it converts.
"""

from collections.abc import Mapping

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.classify import USER_CAST
from amprewrite.passes.facts import extreme_values
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match

MOST = 8
"""A stretch that more values entered than this is the model itself, not an island."""


def find_followed(
    graph: ProgramGraph, classes: Mapping[str, Match], low: str
) -> dict[str, tuple[str, ...]]:
    """Return the values that each cast follows, by the name of the cast.

    A cast that follows none gives full precision: it converts integers, which low
    precision may not hold, or a constant beyond its range.
    """
    casts = [op for op in graph.ops if _follows(op) and not op.fence]
    if not casts:
        return {}
    entered = _entered(graph, classes)
    extreme = extreme_values(graph, classes, low)
    found: dict[str, tuple[str, ...]] = {}
    for op in casts:
        source, *given = op.operands
        values = given or sorted(entered.get(source, ())) or [source]
        safe = source not in extreme and is_float(graph.values[source].dtype)
        found[op.name] = tuple(values) if safe else ()
    return found


def _follows(op: Op) -> bool:
    return op.canonical == USER_CAST and op.chosen == "follows"


def _entered(
    graph: ProgramGraph, classes: Mapping[str, Match]
) -> dict[str, frozenset[str]]:
    """Return, for each value in a stretch that the model keeps full, what entered."""
    entered: dict[str, frozenset[str]] = {}
    for op in graph.ops:
        pinned = op.dtype_argument and op.chosen == "pinned"
        floats = [op.operands[index] for index in graph.float_operands(op)]
        if pinned and floats:
            found = frozenset(floats[:1])
        elif classes[op.name].op_class is OpClass.ALLOW or _follows(op):
            continue
        else:
            found = frozenset[str]().union(*(entered.get(n, ()) for n in op.operands))
        if 0 < len(found) <= MOST:
            entered.update(dict.fromkeys(op.results, found))
    return entered
