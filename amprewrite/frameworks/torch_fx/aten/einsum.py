"""The meaning of an einsum: one name of an op stands for sums, products and moves.

torch multiplies operands pair by pair. A summed label that only one operand of a pair
has is summed before the product; a dimension of extent 1 broadcasts, and does not have
the label. An einsum of one operand multiplies nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.arguments import Called, argument
from amprewrite.frameworks.torch_fx.compat import pytrees, tensor_internals

Extents = tuple[Any, ...]
"""Extents of a tensor: numbers and symbols."""

_ELLIPSIS = "..."
_TOKEN = re.compile(r"\.\.\.|[A-Za-z]")


def einsum_name(node: Called, name: str) -> str:
    """Return the canonical name of the computation of an einsum.

    Args:
        node: A call of ``aten.einsum``.
        name: The name that is returned for contractions, and where the shapes of the
            operands are not known.

    Returns:
        With one operand ``sum``, or ``diagonal`` or ``permute``, which move data; with
        several ``einsum_product`` if nothing is summed, ``einsum_sum`` if a label of
        only one operand is summed, else ``name``.
    """
    equation = _read(node)
    if equation is None:
        return name
    summed = equation.summed
    if len(equation.terms) > 1:
        alone = any(equation.count(label) == 1 for label in summed)
        return "einsum_sum" if alone else name if summed else "einsum_product"
    (term,) = equation.terms
    if summed:
        return "sum"
    return "diagonal" if len(set(term)) < len(term) else "permute"


def einsum_length(node: Called) -> int | None:
    """Return the product of the extents of the summed labels; None if not known."""
    equation = _read(node)
    if equation is None:
        return None
    lengths = [equation.extents[label] for label in equation.summed]
    return prod(lengths) if all(isinstance(n, int) for n in lengths) else None


@dataclass(frozen=True)
class _Equation:
    """An einsum with a label for each dimension, also for those behind an ellipsis.

    Attributes:
        terms: The labels of each operand.
        result: The labels of the result.
        shapes: Extents of each operand.
    """

    terms: Sequence[Sequence[str]]
    result: Sequence[str]
    shapes: Sequence[Extents]

    @property
    def extents(self) -> Mapping[str, Any]:
        """The extent of each label, after broadcasting."""
        extents: dict[str, Any] = {}
        for label, extent in self._dimensions():
            if not _is_unit(extent) or label not in extents:
                extents[label] = extent
        return extents

    @property
    def summed(self) -> list[str]:
        """The labels that are summed over more than one element."""
        return [
            label
            for label, extent in self.extents.items()
            if label not in self.result and not _is_unit(extent)
        ]

    def count(self, label: str) -> int:
        """Return the number of operands that have a label."""
        pairs = zip(self.terms, self.shapes, strict=True)
        return sum((label in _long(term, shape)) for term, shape in pairs)

    def _dimensions(self) -> Iterator[tuple[str, Any]]:
        for term, shape in zip(self.terms, self.shapes, strict=True):
            yield from zip(term, shape, strict=True)


def _long(term: Sequence[str], shape: Extents) -> set[str]:
    pairs = zip(term, shape, strict=True)
    return {label for label, extent in pairs if not _is_unit(extent)}


def _is_unit(extent: object) -> bool:
    return isinstance(extent, int) and extent == 1


def _read(node: Called) -> _Equation | None:
    """Return the equation of a call; None without shapes, or if they do not fit it."""
    text, operands = argument(node, "equation"), argument(node, "tensors")
    if not isinstance(text, str) or not pytrees.is_sequence(operands):
        return None
    values = [x.meta.get("val") if isinstance(x, Node) else x for x in operands]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    shapes: list[Extents] = [tensor_internals.extents(tensor) for tensor in tensors]
    left, arrow, right = text.replace(" ", "").partition("->")
    tokens = [_TOKEN.findall(term) for term in left.split(",")]
    if not len(tokens) == len(shapes) == len(values):
        return None
    pairs = list(zip(tokens, shapes, strict=True))
    ranks = [len(shape) - len(term) + 1 for term, shape in pairs if _ELLIPSIS in term]
    rank = max(ranks, default=0)
    terms = [_spread(term, len(s) - len(term) + 1, rank) for term, s in pairs]
    if any(len(term) != len(shape) for term, shape in zip(terms, shapes, strict=True)):
        return None
    written = _TOKEN.findall(right) if arrow else _implied(tokens)
    return _Equation(terms, _spread(written, rank, rank), shapes)


def _spread(tokens: Sequence[str], rank: int, widest: int) -> list[str]:
    """Return labels with the last ``rank`` of ``widest`` dimensions for an ellipsis."""
    spread: list[str] = []
    for token in tokens:
        dimensions = [str(i) for i in range(widest - rank, widest)]
        spread.extend(dimensions if token == _ELLIPSIS else [token])
    return spread


def _implied(tokens: Sequence[Sequence[str]]) -> list[str]:
    """Return the result of an equation without an arrow: the labels that occur once."""
    used = [token for term in tokens for token in term]
    once = {token for token in used if used.count(token) == 1}
    return [*([_ELLIPSIS] * (_ELLIPSIS in used)), *sorted(once - {_ELLIPSIS})]
