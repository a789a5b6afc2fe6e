"""The factor of the gradient that enters a loss, where its paths are joined.

The terms of a loss that share a network are no cut edges: their means cannot give
gradients a factor each. The gradient of the whole loss can have one, which all share,
and so can the gradients of several losses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.unit_scaling.graph.formula import resolve
from amprewrite.unit_scaling.graph.scales import OUTPUT, Scale
from amprewrite.unit_scaling.graph.units import Edge, Unit

ALIKE = 64
"""Extent with which the factors of terms are compared: which term is the largest."""


def loss_gradient(
    units: Sequence[Unit],
    backward: Mapping[str, Mapping[int, Any]],
    cut: frozenset[Edge],
    outputs: Sequence[str],
) -> list[Scale]:
    """Return the scales of the gradients of losses; none where nothing is joined.

    The factor is the product of those that joined edges do not have, along the term
    that needs the least: its gradients have unit scale, and no others are larger. Of
    several outputs all have the same one, so that any sum of them has a true gradient:
    that of a total, where its terms are outputs too.

    Args:
        units: Units of the program, those of the loss marked.
        backward: Backward factors of the rules, by unit and index.
        cut: Cut edges, which have theirs.
        outputs: The losses.
    """
    wanted: dict[str, Any] = {}
    parts: dict[str, frozenset[str]] = {}
    makers = {name: unit for unit in units for name in unit.results}
    for unit in units:
        read = [edge for edge in unit.edges if edge.value in wanted]
        used = frozenset[str]().union(*(parts[edge.value] for edge in read))
        terms = [
            (1.0 if edge in cut else backward[unit.name].get(edge.index, 1.0))
            * wanted[edge.value]
            for edge in read
            if unit.is_of_loss
        ]
        for name in unit.results:
            if terms or not unit.is_of_loss:
                wanted[name] = min(terms, key=_size, default=1.0)
                parts[name] = used | {name} & set(outputs)
    if any(name not in makers or not makers[name].is_of_loss for name in outputs):
        return []
    nothing = frozenset[str]()
    inner = nothing.union(*(parts.get(name, nothing) - {name} for name in outputs))
    ends = [wanted.get(name, 1.0) for name in outputs if name not in inner]
    factor = min(ends, key=_size, default=1.0)
    if isinstance(factor, float) and factor == 1.0:
        return []
    why = "terms of the loss share what is before them"
    return [
        Scale(name, makers[name].name, OUTPUT, 1.0, factor, "closed form", why=why)
        for name in outputs
    ]


def _size(factor: Any) -> float:
    return float(resolve(factor, lambda _value, _dimension: ALIKE))
