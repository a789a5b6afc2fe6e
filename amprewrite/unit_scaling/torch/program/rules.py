"""The rule of every unit of a program: by name, by quadrature, or by a sample."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Node

from amprewrite.errors import UnitScalingError
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, occurrences
from amprewrite.unit_scaling.graph import Differentiable, Unit, UnitRule
from amprewrite.unit_scaling.torch.program.call import Call, operand_nodes
from amprewrite.unit_scaling.torch.program.measured_rules import (
    example_extents,
    example_values,
    named_region,
    op_by_sample,
    region_by_quadrature,
    region_by_sample,
)
from amprewrite.unit_scaling.torch.program.op_rules import rule_by_name, unscaled


class Rules:
    """Rules of the units of one program; the example is run only if one needs it."""

    def __init__(
        self,
        reading: Reading,
        live: Differentiable,
        example: tuple[Any, Mapping[str, Any]],
        mult: Mapping[str, float],
    ) -> None:
        """Take the program, its example and multipliers by canonical name."""
        self.reading, self.live, self.example = reading, live, example
        self.mult = dict(mult)
        self._samples: Mapping[Node, Any] | None = None

    def of(self, units: Sequence[Unit], leave: frozenset[str]) -> dict[str, UnitRule]:
        """Return the rule of each unit but those named in ``leave``.

        Raises:
            UnitScalingError: An op has no rule; a multiplier is for no op.
        """
        found = {u.name: self._of(u) for u in units if u.name not in leave}
        names = {u.ops[0].canonical for u in units if u.is_region and len(u.ops) == 1}
        if unused := [name for name in self.mult if name not in names]:
            msg = (
                f"mult names {', '.join(unused)}; want elementwise ops of the model: "
                f"{', '.join(sorted(names)) or 'there are none'}"
            )
            raise UnitScalingError(msg)
        return found

    def _of(self, unit: Unit) -> UnitRule:
        op = unit.ops[-1]
        call = Call(op, self.reading.sites[op.name].node, self.reading, self.live)
        if unit.is_region:
            return self._of_region(unit, call)
        rule = rule_by_name(call)
        if rule is not None:
            return rule
        nodes = operand_nodes(self.reading, call.node)
        shapes: dict[int, tuple[int, ...]] = {}
        for edge in unit.edges:
            node = nodes[edge.index]
            if node is None:
                msg = f"no rule of unit scaling for {call.where}"
                raise UnitScalingError(msg)
            shapes[edge.index] = example_extents(node.meta["val"])
        others = len(occurrences(call.node)) > len(shapes)
        return op_by_sample(call, self._values() if others else {}, shapes)

    def _of_region(self, unit: Unit, call: Call) -> UnitRule:
        """Return the rule of a region."""
        if all(op.canonical in {"cast", "to"} for op in unit.ops):
            return unscaled("changes the dtype")
        mult = self.mult.get(call.op.canonical, 1.0) if len(unit.ops) == 1 else 1.0
        rule = named_region(unit, call, mult)
        if rule is not None:
            return rule
        if unit.has_statistic:
            return region_by_sample(self.reading, unit, call)
        try:
            return region_by_quadrature(self.reading, unit, call, mult)
        except UnitScalingError:
            if unit.is_of_scalars:
                return unscaled("a scalar is left as it is")
            raise

    def _values(self) -> Mapping[Node, Any]:
        if self._samples is None:
            self._samples = example_values(self.reading.module, *self.example)
        return self._samples
