"""Factors as formulas of extents that are known when the program runs."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_operator: Any = operator
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": _operator.truediv,
    "**": _operator.pow,
}


@dataclass(frozen=True)
class Formula:
    """An expression of numbers and extents; arithmetic on it makes larger ones.

    Attributes:
        operation: ``+``, ``*``, ``/`` or ``**``; ``size`` for an extent.
        left: A number or a formula; of an extent the name of the value.
        right: A number or a formula; of an extent its dimension.
    """

    operation: str
    left: Any
    right: Any

    def __add__(self, other: Any) -> Any:
        """Return the sum."""
        return Formula("+", self, other)

    def __radd__(self, other: Any) -> Any:
        """Return the sum."""
        return Formula("+", other, self) if other != 0 else self

    def __mul__(self, other: Any) -> Any:
        """Return the product."""
        return Formula("*", self, other) if other != 1 else self

    def __rmul__(self, other: Any) -> Any:
        """Return the product."""
        return Formula("*", other, self) if other != 1 else self

    def __truediv__(self, other: Any) -> Any:
        """Return the quotient."""
        return Formula("/", self, other) if other != 1 else self

    def __rtruediv__(self, other: Any) -> Any:
        """Return the quotient."""
        return Formula("/", other, self)

    def __pow__(self, other: Any) -> Any:
        """Return the power."""
        return Formula("**", self, other) if other != 1 else self

    def __str__(self) -> str:
        """Return the expression, such as ``size(x, 0) ** -0.5``."""
        if self.operation == "size":
            return f"size({self.left}, {self.right})"
        return f"{_text(self.left)} {self.operation} {_text(self.right)}"

    def to_json(self) -> list[Any]:
        """Return nested lists."""
        return [self.operation, _plain(self.left), _plain(self.right)]


def extent(value: str, dimension: int) -> Formula:
    """Return the extent of a value along one dimension, known at run time."""
    return Formula("size", value, dimension)


def resolve(factor: Any, size: Callable[[str, int], Any]) -> Any:
    """Return the value of a factor.

    Args:
        factor: A number or a formula.
        size: Returns the extent of a value, by its name and the dimension: a number, or
            anything with arithmetic (a symbol of a tracer, a node of a graph).
    """
    if not isinstance(factor, Formula):
        return factor
    if factor.operation == "size":
        return size(factor.left, factor.right)
    left, right = resolve(factor.left, size), resolve(factor.right, size)
    return _OPERATORS[factor.operation](left, right)


def from_json(stored: Any) -> Any:
    """Return the factor that :meth:`Formula.to_json` stored; numbers unchanged."""
    if not isinstance(stored, list):
        return stored
    operation, left, right = stored  # pyright: ignore[reportUnknownVariableType]  # JSON
    return Formula(str(operation), from_json(left), from_json(right))  # pyright: ignore[reportUnknownArgumentType]  # JSON


def factor_text(factor: Any) -> str:
    """Return a factor as text, numbers with six digits."""
    return str(factor) if isinstance(factor, Formula) else f"{factor:.6g}"


def _text(part: Any) -> str:
    if isinstance(part, Formula):
        return str(part) if part.operation == "size" else f"({part})"
    return f"{part:.6g}"


def _plain(part: Any) -> Any:
    return part.to_json() if isinstance(part, Formula) else part
