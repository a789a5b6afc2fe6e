"""The loss of a program: the ops after its last contraction, where it ends in scalars.

A loss is compared with others, weighed and logged, so that its ops keep their values.
Only gradients get factors there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from amprewrite.passes.analysis.additions import CONTRACTIONS, residual_adds
from amprewrite.unit_scaling.graph.differentiable import Closing, Differentiable
from amprewrite.unit_scaling.graph.units import Unit

_PAIR = 2


def mark_loss(
    live: Differentiable, units: Sequence[Unit], closing: Closing = ()
) -> tuple[Unit, ...]:
    """Return the units, those of the loss marked.

    The network ends where nothing that follows contracts, joins a parameter with other
    values, adds a residual branch, or sums products of two values that contractions
    made. A unit that leads to none of these is a part of the loss: what follows, what
    targets go through, and penalties, which depend on parameters alone. Nothing is
    marked where the program returns no scalar, and penalties alone where it has no
    contraction.

    Args:
        live: The differentiable part of the program, with functions as single ops.
        units: Its units.
        closing: Carries of its loops.
    """
    shapes = {name: value.shape for name, value in live.graph.values.items()}
    if any(shapes[name] for name in live.outputs):
        return tuple(units)
    parts = _Parts(live, units, closing)
    inside = parts.before(unit for unit in units if parts.is_network(unit))
    return tuple(
        replace(unit, is_of_loss=True)
        if unit.name not in inside and (inside or parts.is_penalty(unit))
        else unit
        for unit in units
    )


@dataclass
class _Parts:
    """The units of one program, with the values that depend on data."""

    live: Differentiable
    units: Sequence[Unit]
    closing: Closing
    made_by: dict[str, Unit] = field(init=False)
    of_data: set[str] = field(init=False)
    sums: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Find the values that depend on data, and residual additions."""
        self.made_by = {name: unit for unit in self.units for name in unit.results}
        self.of_data = self._values_of_data()
        self.sums = frozenset(add.op.name for add in residual_adds(self.live.graph))

    def _values_of_data(self) -> set[str]:
        """Return the values that depend on inputs, integers among them.

        A function without inputs has its data in constants.
        """
        graph = self.live.graph
        found = {value.name for value in graph.inputs("input")}
        made = set(graph.producer) | {v.name for v in graph.inputs("parameter")}
        found = found or set(graph.values) - made
        while True:
            for op in graph.ops:
                if found.intersection(op.operands):
                    found.update(op.results)
            entered = {b for a, b in self.closing if a in found}
            if entered <= found:
                return found
            found |= entered

    def is_penalty(self, unit: Unit) -> bool:
        """Return whether a unit depends on parameters alone."""
        return self.of_data.isdisjoint(unit.results)

    def is_network(self, unit: Unit) -> bool:
        """Return whether a unit is one with which the network may end."""
        last = unit.ops[-1]
        if len(unit.edges) < _PAIR:
            return last.canonical == "sum" and self._sums_products(unit)
        if self.is_penalty(unit):
            return False
        if last.traits.group in CONTRACTIONS or last.name in self.sums:
            return True
        graph = self.live.graph
        values = [graph.values[edge.value] for edge in unit.edges]
        kinds = {value.kind == "parameter" for value in values if value.shape}
        return len(kinds) > 1

    def _sums_products(self, unit: Unit) -> bool:
        """Return whether a sum is one of products of values of two contractions.

        Both factors of an entropy, sum(p log p), are functions of the same logits.
        """
        made = self.live.graph.producer.get(unit.edges[0].value)
        if made is None or made.canonical != "mul":
            return False
        factors = {name for name in made.operands if name in self.live.values}
        sources = [self._contractions(name) for name in factors]
        return len(sources) == _PAIR and all(sources) and sources[0] != sources[1]

    def _contractions(self, name: str) -> set[str]:
        """Return the contractions nearest to a value, of all that it depends on."""
        found, seen, waiting = set[str](), set[str](), [name]
        while waiting:
            made = self.made_by.get(waiting.pop())
            if made is None or made.name in seen:
                continue
            seen.add(made.name)
            if len(made.edges) >= _PAIR and self.is_network(made):
                found.add(made.name)
            else:
                waiting += [edge.value for edge in made.edges]
        return found

    def before(self, last: Iterable[Unit]) -> set[str]:
        """Return the names of units, and of all that they depend on."""
        entered = {entered: left for left, entered in self.closing}
        found, waiting = set[str](), list(last)
        while waiting:
            unit = waiting.pop()
            if unit.name in found:
                continue
            found.add(unit.name)
            for edge in unit.edges:
                names = (edge.value, entered.get(edge.value, ""))
                waiting += [
                    self.made_by[name] for name in names if name in self.made_by
                ]
        return found
