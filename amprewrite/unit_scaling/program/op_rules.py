"""Rules of ops that both frameworks spell alike."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from amprewrite.unit_scaling.graph import UnitRule
from amprewrite.unit_scaling.program.call import OpCall, shape_of
from amprewrite.unit_scaling.rules import shapes
from amprewrite.unit_scaling.rules.softmax import masked_softmax

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
