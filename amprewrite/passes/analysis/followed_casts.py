"""Find the values that a cast takes its dtype from: ``y.to(x.dtype)``.

A second trace shows that a cast follows a dtype, but not of which value. ``type_as``
names it; otherwise the cast ends a part in full precision that the model began itself
(``x.float()``, or ``softmax(..., dtype=float32)``), and it returns to the dtype of the
values that entered that part. A cast that ends no such part follows its own operand.
"""

from collections.abc import Container, Iterator, Mapping

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.demand import Demand, Demands
from amprewrite.passes.analysis.weights_and_literals import extreme_values
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match

MOST = 8
"""Largest number of values that enter a full part; with more it is the whole model."""


def find_followed(
    graph: ProgramGraph,
    classes: Mapping[str, Match],
    demands: Demands,
    weights: Container[str],
    low: str,
) -> dict[str, tuple[str, ...]]:
    """Return the values that each cast follows, by the name of the cast.

    A cast that follows none has a full result: it converts integers, which low
    precision may not represent, or a constant beyond its range.

    Args:
        graph: The program.
        classes: Class of every op.
        demands: Demand on every value.
        weights: Values that are weights, moved about.
        low: The low dtype.
    """
    casts = [op for op in graph.ops if _follows(op, classes) and not op.fence]
    if not casts:
        return {}
    finder = _Finder(graph, classes, demands, weights)
    extreme = extreme_values(graph, classes, low)
    found: dict[str, tuple[str, ...]] = {}
    for op in casts:
        source, *given = op.operands
        values = given or finder.stands_for(source) or [source]
        safe = source not in extreme and graph.values[source].is_float
        found[op.name] = tuple(values) if safe else ()
    return found


def _follows(op: Op, classes: Mapping[str, Match]) -> bool:
    return op.canonical == USER_CAST and classes[op.name].op_class is OpClass.FOLLOW


class _Finder:
    """Finder of the values that entered each part in full precision."""

    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        demands: Demands,
        weights: Container[str],
    ) -> None:
        self.graph, self.classes = graph, classes
        self.demands, self.weights = demands, weights
        self.entered: dict[str, frozenset[str]] = {}
        for op in graph.ops:
            found = self._entered(op)
            if 0 < len(found) <= MOST:
                self.entered.update(dict.fromkeys(op.results, found))

    def stands_for(self, source: str) -> list[str]:
        """Return the entered values of ``source``'s part that the cast follows.

        Weights and inputs, such as a mask, may enter beside computed values.
        """
        found = sorted(self.entered.get(source, ()))
        moving = [name for name in found if name not in self.weights]
        made = [name for name in moving if self.graph.values[name].kind == "result"]
        return made or moving or found

    def _entered(self, op: Op) -> frozenset[str]:
        floats = self._floats(op)
        if op.dtype_argument and op.chosen == "pinned" and floats:
            inside = self.entered.get(floats[0])  # a cast of a value that is full
            return inside or frozenset(self._source(floats[0]))
        left = self.classes[op.name].op_class is OpClass.ALLOW
        if left or _follows(op, self.classes):
            return frozenset()
        return frozenset[str]().union(
            *(self.entered.get(name, ()) for name in op.operands)
        )

    def _source(self, name: str) -> Iterator[str]:
        """Yield ``name``, or its producer's operands if the part made it full."""
        maker = self.graph.producer.get(name)
        wanted = self.demands.on(name) is Demand.FULL
        if maker is None or not wanted or not self._computes(maker):
            yield name
            return
        for operand in self._floats(maker):
            yield from self._source(operand)

    def _computes(self, op: Op) -> bool:
        op_class = self.classes[op.name].op_class
        cheap = op_class in (OpClass.PROMOTE, OpClass.FOLLOW)
        follows = _follows(op, self.classes)
        return cheap and bool(self._floats(op)) and not follows

    def _floats(self, op: Op) -> list[str]:
        return [name for name in op.operands if self.graph.values[name].is_float]
