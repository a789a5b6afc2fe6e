"""Mixtures: sums of values that gates weigh, such as z * h + (1 - z) * n.

A gate is between 0 and 1, and means that share of a value. Divided by its scale it
would not, and what a recurrence keeps would grow at every step. A mixture with its
gates as they were written has a scale near 1 already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amprewrite.unit_scaling.graph.unit_rule import UnitRule
from amprewrite.unit_scaling.graph.units import Unit

SUMS = frozenset({"add", "rsub", "sub"})
"""Canonical names of sums."""
AFFINE = SUMS | {"neg"}
"""Canonical names of the ops that a complement, 1 - z, is made of."""
MOVES = frozenset({"cast", "control", "metadata", "movement"})
"""Groups of ops that hand a gate on, into a loop too."""


def find_mixtures(
    units: Sequence[Unit], rules: Mapping[str, UnitRule]
) -> frozenset[str]:
    """Return the names of the units without a forward factor, gates and mixtures.

    They are sums with an operand that a gate is multiplied into, the gates of these,
    and gates of which there is a complement.

    Args:
        units: Units of the program.
        rules: Rule of each unit but the residual additions, by name.
    """
    found = _Gates(units, rules)
    kept = set[str]()
    for unit in units:
        if unit.name not in rules or unit.is_of_loss:
            continue
        if gate := found.complemented(unit):
            kept |= {unit.name, *gate}
        if unit.ops[-1].canonical in SUMS and not unit.is_region:
            gates = {g for edge in unit.edges for g in found.weighing(edge.value)}
            kept |= gates and {unit.name, *gates}
    return frozenset(kept)


@dataclass
class _Gates:
    """The units of one program, with those that make gates."""

    units: Sequence[Unit]
    rules: Mapping[str, UnitRule]
    made_by: dict[str, Unit] = field(init=False)

    def __post_init__(self) -> None:
        """Find the unit that makes each value."""
        self.made_by = {name: unit for unit in self.units for name in unit.results}

    def gates(self, value: str) -> set[str]:
        """Return the unit that makes a gate, with that of which it is a complement."""
        unit = self._source(value)
        if unit is None or not unit.is_region:
            return set()
        if inner := self.complemented(unit):
            return {unit.name, *inner}
        return {unit.name} if self.rules[unit.name].has_mean else set()

    def complemented(self, unit: Unit) -> set[str]:
        """Return the units of the gate of which a unit makes the complement."""
        if not unit.is_region or any(op.canonical not in AFFINE for op in unit.ops):
            return set()
        return self.gates(unit.edges[0].value)

    def weighing(self, value: str) -> Iterator[str]:
        """Yield the units of the gates that are multiplied into an operand of a sum."""
        product = self._source(value)
        if product is not None and product.ops[-1].canonical == "mul":
            for edge in product.edges if len(product.edges) > 1 else ():
                yield from self.gates(edge.value)

    def _source(self, value: str) -> Unit | None:
        """Return the unit that makes a value, before it is moved."""
        unit = self.made_by.get(value)
        while unit is not None and not unit.is_region and len(unit.edges) == 1:
            if unit.ops[-1].traits.group not in MOVES:
                break
            unit = self.made_by.get(unit.edges[0].value)
        return unit
