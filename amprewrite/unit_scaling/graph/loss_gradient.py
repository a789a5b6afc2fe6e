"""The factor of the gradient that enters a loss, where its paths are joined.

The terms of a loss that share a network are no cut edges: their means cannot give
gradients a factor each. The gradient of the whole loss can have one, which all share.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.unit_scaling.graph.formula import resolve
from amprewrite.unit_scaling.graph.scales import Scale
from amprewrite.unit_scaling.graph.units import Edge, Unit

ALIKE = 64
"""Extent with which the factors of terms are compared: which term is the largest."""


def loss_gradient(
    units: Sequence[Unit],
    backward: Mapping[str, Mapping[int, Any]],
    cut: frozenset[Edge],
    output: str,
) -> list[Scale]:
    """Return the scale of the gradient of a loss; none where nothing is joined.

    It is the product of the factors that joined edges do not have, along the term that
    needs the least: its gradients have unit scale, and no others are larger.

    Args:
        units: Units of the program, those of the loss marked.
        backward: Backward factors of the rules, by unit and index.
        cut: Cut edges, which have theirs.
        output: The loss.
    """
    wanted: dict[str, Any] = {}
    ends = ""
    for unit in units:
        if not unit.is_of_loss:
            wanted |= dict.fromkeys(unit.results, 1.0)
            continue
        terms = [
            (1.0 if edge in cut else backward[unit.name].get(edge.index, 1.0))
            * wanted[edge.value]
            for edge in unit.edges
            if edge.value in wanted
        ]
        if terms:
            wanted |= dict.fromkeys(unit.results, min(terms, key=_size))
        if output in unit.results:
            ends = unit.name
    factor = wanted.get(output, 1.0)
    if not ends or (isinstance(factor, float) and factor == 1.0):
        return []
    why = "terms of the loss share what is before them"
    return [Scale(output, ends, None, 1.0, factor, "closed form", why=why)]


def _size(factor: Any) -> float:
    return float(resolve(factor, lambda _value, _dimension: ALIKE))
