"""Factors that no compiler traces: they are numbers, computed by NumPy and SciPy."""

import operator
from typing import Any

import torch

from amprewrite.unit_scaling.rules import shapes

_compiler: Any = torch.compiler


def numbers(
    op: str, mult: float, constraint: str | None, **shape: Any
) -> tuple[float, ...]:
    """Return the factors of an op: the output's, then those of the inputs.

    Extents and multipliers must be numbers: a traced one is fixed by it, so that a
    compiled program is guarded by its value.
    """
    given = tuple((key, _fixed(value)) for key, value in shape.items())
    return _constant(op, float(mult).hex(), constraint or "", given)


def _fixed(value: float) -> object:
    """Return a constant of dynamo: the digits of a float, or an integer."""
    if isinstance(value, float):
        return value.hex()
    return bool(value) if isinstance(value, bool) else operator.index(value)


def _numbers(
    op: str, mult: str, constraint: str, shape: tuple[tuple[str, Any], ...]
) -> tuple[float, ...]:
    """Compute the factors from constants."""
    given = tuple(
        (key, float.fromhex(value) if isinstance(value, str) else value)
        for key, value in shape
    )
    return shapes.numbers(op, float.fromhex(mult), constraint, given)


_constant: Any = _compiler.assume_constant_result(_numbers)
