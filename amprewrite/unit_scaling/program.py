"""The pass over a whole program, as far as both frameworks do the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.unit_scaling import shapes
from amprewrite.unit_scaling.graph.assign import (
    UnitRule,
    assign,
    cut_edges,
    find_residuals,
)
from amprewrite.unit_scaling.graph.scales import ScalePlan, extent
from amprewrite.unit_scaling.graph.units import (
    Closing,
    Differentiable,
    Unit,
    find_units,
    mark_loss,
)
from amprewrite.unit_scaling.rules import masked_softmax

# Options of the pass over a whole model.


@dataclass(frozen=True)
class Settings:
    """Options of the pass.

    Attributes:
        constraint: Constraint of factors that are joined; None for no cut-edge rule.
        tau: Weight of residual branches.
        mult: Multipliers by canonical name of an elementwise op.
    """

    constraint: str | None = "auto"
    tau: float = 0.5
    mult: Mapping[str, float] = field(default_factory=dict[str, float])


# One op of a program with its operands, as rules of both frameworks read it.


class OpCall:
    """One op; a framework adds its own arguments.

    Attributes:
        op: The op.
    """

    op: Op

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        raise NotImplementedError

    @property
    def differentiable(self) -> Differentiable:
        """The part of the program that is differentiated."""
        raise NotImplementedError

    def value(self, index: int) -> Value:
        """Return an operand."""
        return self.graph.values[self.op.operands[index]]

    def shape(self, index: int) -> tuple[Any, ...]:
        """Return the extents of an operand: numbers, and formulas where they vary."""
        return shape_of(self.value(index))

    @property
    def result(self) -> tuple[Any, ...]:
        """The extents of the first result."""
        return shape_of(self.graph.values[self.op.results[0]])

    def is_live(self, index: int | None) -> bool:
        """Return whether an operand is given and has a gradient."""
        operands = self.op.operands
        if index is None or index >= len(operands):
            return False
        return operands[index] in self.differentiable.values

    @property
    def where(self) -> str:
        """The op, its module and its line, for messages."""
        path = f" of {self.op.path}" if self.op.path else ""
        line = f" at {self.op.source}" if self.op.source else ""
        return f"{self.op.native}{path}{line}"


def shape_of(value: Value) -> tuple[Any, ...]:
    """Return the extents of a value: numbers, and formulas where they vary."""
    return tuple(
        d if isinstance(d, int) else extent(value.name, i)
        for i, d in enumerate(value.shape)
    )


# Rules of ops that both frameworks spell alike.

CLOSED = "closed form"

KEEPS = frozenset({"cast", "control", "metadata", "movement", "selection"})
"""Groups of ops that move values, or choose between them."""

Call = TypeVar("Call", bound=OpCall)


def rule_by_table(
    table: Mapping[str, Callable[[Call], UnitRule | None]], call: Call
) -> UnitRule | None:
    """Return the rule of an op by its canonical name; None where it has none."""
    find = table.get(call.op.canonical)
    if find is not None:
        return find(call)
    if call.op.traits.group in KEEPS:
        return unscaled("every result is a value of an operand")
    return None


def unscaled(why: str, *, fixed: bool = False) -> UnitRule:
    """Return the rule of an op that keeps the scale."""
    return UnitRule(1.0, {}, CLOSED, why, fixed=fixed)


def gather(call: OpCall) -> UnitRule:
    """Return the rule of a look-up: gradients of an element add up."""
    table, found = shapes.count(call.shape(0)), shapes.count(call.result)
    factor = table**0.5 * found**-0.5 if found != 0 else 1.0
    return UnitRule(1.0, {0: factor}, CLOSED, "elements that are looked up")


def product(call: OpCall) -> UnitRule:
    """Return the rule of a product."""
    if not (call.is_live(0) and call.is_live(1)):
        return unscaled("a product with a constant, taken as of unit scale")
    both = {i: shapes.copies(call.shape(i), call.result) ** -0.5 for i in (0, 1)}
    return UnitRule(1.0, both, CLOSED, "independent factors")


def quotient(call: OpCall) -> UnitRule:
    """Return the rule of a division: of a sum by a number of the data, or any other."""
    total = call.graph.producer.get(call.op.operands[0])
    is_whole = not call.value(0).shape and not call.is_live(1)
    if is_whole and total is not None and total.canonical == "sum":
        terms = shapes.count(shape_of(call.graph.values[total.operands[0]]))
        why = "a sum by a number of the data, taken as a mean of all its terms"
        return UnitRule(1.0, {0: terms}, CLOSED, why, fixed=True)
    return unscaled("a ratio of two values is left as it is")


def masked(visible: Mapping[int, int], size: int) -> UnitRule:
    """Return the rule of a softmax of which a mask hides logits.

    Args:
        visible: How many rows have how many logits that are not hidden.
        size: Logits of a row, the hidden ones too.
    """
    found = masked_softmax(visible, size)
    seen = sum(n * rows for n, rows in visible.items()) / sum(visible.values())
    why = f"{seen:.4g} of {size} logits a row, by the mask"
    return UnitRule(found.forward, {0: found.backward["input"]}, "quadrature", why)


# From a read program to its scale plan: the analyses and rules, in their order.

Find = Callable[[Sequence[Unit], frozenset[str]], Mapping[str, UnitRule]]
"""Returns the rule of each unit but those that are named."""


def plan_scales(
    live: Differentiable,
    find_rules: Find,
    settings: Settings,
    *,
    closing: Closing = (),
    elementwise: frozenset[str] = frozenset(),
) -> tuple[tuple[Unit, ...], ScalePlan]:
    """Return the units of a program, and its scale plan; nothing is written.

    Args:
        live: The differentiable part of the program.
        find_rules: Finds the rules of the framework.
        settings: How to scale.
        closing: Carries of its loops.
        elementwise: Names of ops that are functions of single numbers.

    Raises:
        UnitScalingError: An op has no rule.
    """
    units = mark_loss(live, find_units(live, elementwise), closing)
    cut = cut_edges(live, units, closing)
    residuals = find_residuals(live, units, cut, closing)
    plan = assign(
        units,
        find_rules(units, frozenset(residual.unit for residual in residuals)),
        cut,
        residuals,
        live.outputs,
        constraint=settings.constraint,
        tau=settings.tau,
    )
    return units, plan
