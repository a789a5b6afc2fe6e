"""Numbers of values that are made of constants alone."""

from collections.abc import Mapping
from math import nan

from amprewrite.ir import ProgramGraph
from amprewrite.policy.match import Match
from amprewrite.policy.model import FOLLOW, KEEP


def known_numbers(
    graph: ProgramGraph, classes: Mapping[str, Match]
) -> dict[str, tuple[float, ...]]:
    """Return the numbers of values that are made of constants alone.

    NaN stands for a number that is only known at run time: a sum of constants, or a
    scalar that is an argument.
    """
    numbers = {value.name: value.numbers for value in graph.inputs() if value.numbers}
    numbers.update(
        (value.name, (nan,))
        for value in graph.inputs("input", "parameter")
        if value.shape == () and value.is_float
    )
    fixed = {value.name for value in graph.inputs("constant", "buffer")} | {*numbers}
    for op in graph.ops:
        floats = [name for name in op.operands if graph.values[name].is_float]
        fills = op.traits.filler and op.operand_rule == "any"
        if op.fence or op.mutates or not (fills or fixed.issuperset(floats)):
            continue
        if not floats and op.operands and not fills:
            continue  # integers of the program
        fixed.update(op.results)
        parts = op.literals if fills or not floats else ()
        for name in () if fills else floats:
            parts = (*parts, *numbers.get(name, ()))
        moves = classes[op.name].op_class in (FOLLOW, KEEP)
        if moves:
            numbers.update((r, parts) for r in op.results if parts)
        else:
            numbers.update((r, (nan,)) for r in op.results)
    return numbers
