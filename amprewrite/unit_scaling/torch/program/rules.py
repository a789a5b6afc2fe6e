"""The rule of every unit of a program: by name, by quadrature, or by a sample."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node

from amprewrite.errors import UnitScalingError
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, occurrences
from amprewrite.ir import Op
from amprewrite.unit_scaling.graph import Differentiable, Unit, UnitRule
from amprewrite.unit_scaling.program import masked, unscaled
from amprewrite.unit_scaling.rules.softmax import visible_logits
from amprewrite.unit_scaling.torch.program.call import Call, operand_nodes
from amprewrite.unit_scaling.torch.program.measured_rules import (
    example_extents,
    example_values,
    named_region,
    op_by_sample,
    region_by_quadrature,
    region_by_sample,
)
from amprewrite.unit_scaling.torch.program.op_rules import (
    rule_by_name,
    terms_of,
)

MASKS = frozenset({"add", "masked_fill", "sub", "where"})
"""Ops that hide logits."""


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
        try:
            return self._found(unit)
        except UnitScalingError:
            if not unit.is_of_loss:
                raise
            op = unit.ops[-1]
            terms = terms_of(self._call(op))
            why = "a part of the loss is left as it is"
            return UnitRule(1.0, {0: terms}, "closed form", why, fixed=True)

    def _found(self, unit: Unit) -> UnitRule:
        """Return the rule of a unit.

        Raises:
            UnitScalingError: There is none.
        """
        op = unit.ops[-1]
        call = self._call(op)
        if unit.is_region:
            return self._of_region(unit, call)
        rule = self._of_masked(call) or rule_by_name(call)
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
        inside = {
            i: shape[-1] ** -0.5
            for i, shape in shapes.items()
            if op.traits.group == "recurrent" and call.value(i).kind == "parameter"
            if len(shape) > 1
        }
        rule = op_by_sample(call, self._values() if others else {}, shapes, inside)
        return _of_any_batch(call, rule)

    def _of_masked(self, call: Call) -> UnitRule | None:
        """Return the rule of a softmax with a mask before it, as in the example."""
        if call.op.canonical != "softmax" or not is_masked(call):
            return None
        logits = self._values()[call.node.all_input_nodes[0]]
        axis = call.argument("dim")
        visible = visible_logits(logits.float().numpy(), axis)
        if set(visible) == {logits.shape[axis]}:
            return None
        return masked(visible, logits.shape[axis])

    def _call(self, op: Op) -> Call:
        return Call(op, self.reading.sites[op.name].node, self.reading, self.live)

    def _of_region(self, unit: Unit, call: Call) -> UnitRule:
        """Return the rule of a region."""
        if all(op.canonical in {"cast", "to"} for op in unit.ops):
            return unscaled("changes the dtype")
        alone = len(unit.ops) == 1 and {unit.edges[0].value} == set(call.op.operands)
        mult = self.mult.get(call.op.canonical, 1.0) if alone else 1.0
        rule = named_region(unit, call, mult)
        if rule is not None:
            return rule
        if unit.has_statistic:
            return region_by_sample(self.reading, unit, call)
        return region_by_quadrature(self.reading, unit, call, mult)

    def _values(self) -> Mapping[Node, Any]:
        if self._samples is None:
            self._samples = example_values(self.reading.module, *self.example)
        return self._samples


def is_masked(call: Call) -> bool:
    """Return whether logits come from a sum or a choice with a tensor of data."""
    graph = call.reading.graph
    name = call.op.operands[0]
    while (made := graph.producer.get(name)) is not None:
        if made.canonical in MASKS:
            return any(operand not in call.live.values for operand in made.operands)
        if made.traits.group not in ("cast", "movement") or len(made.operands) != 1:
            break
        name = made.operands[0]
    return False


def _of_any_batch(call: Call, rule: UnitRule) -> UnitRule:
    """Return a measured rule for any number of terms, if it is of a mean of them."""
    terms = terms_of(call)
    if isinstance(terms, int):
        return rule
    node = operand_nodes(call.reading, call.node)[0]
    if node is None:
        return rule
    measured = math.prod(example_extents(node.meta["val"]))
    backward = {i: terms * (f / measured) for i, f in rule.backward.items()}
    return replace(rule, backward=backward)
