"""Scale plans: which value of a program gets which factors, and why. Plain data."""

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amprewrite.errors import UnitScalingError

# Factors as formulas of extents that are known when the program runs.

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


OUTPUT = -2
"""Index of the use of a value as an output of the program."""


@dataclass(frozen=True)
class Scale:
    """Two factors on one use of a value, or on a result.

    Attributes:
        value: The value.
        unit: Name of the op, or of the last op of a region, that reads or makes it.
        index: Index of the operand; -1 for all uses by a region together;
            :data:`OUTPUT` where the unit makes the value, for what the program returns;
            None where it makes it, for all uses.
        forward: Factor of the value: a number or a formula of run-time extents.
        backward: Factor of its gradient.
        kind: Source: ``closed form``, ``quadrature``, ``empirical`` or ``residual``.
        constraint: The constraint that chose it; empty where the factor is the rule's.
        cut: Whether the use is a cut edge.
        why: The reason, in words.
    """

    value: str
    unit: str
    index: int | None
    forward: Any
    backward: Any
    kind: str
    constraint: str = ""
    cut: bool = False
    why: str = ""

    @property
    def place(self) -> tuple[str, int | None]:
        """The unit, and the operand or the result."""
        return self.unit, self.index

    def __str__(self) -> str:
        """Return one line."""
        names = {None: "result", OUTPUT: "output"}
        where = names.get(self.index, "input")
        edge = " (cut edge)" if self.cut else ""
        joined = f", {self.constraint}" if self.constraint else ""
        return (
            f"{where} {self.value}{edge}: forward {factor_text(self.forward)}, "
            f"backward {factor_text(self.backward)} ({self.kind}{joined}: {self.why})"
        )


@dataclass(frozen=True)
class ScalePlan:
    """All factors of one program.

    Attributes:
        scales: The factors, in program order; those that are 1 both ways are left out.
        residuals: Names of the residual additions.
        rules: Kind of rule of each unit, by name.
        edges: Number of uses of values that have a gradient.
        cut: Number of these that are cut edges.
    """

    scales: tuple[Scale, ...]
    residuals: tuple[str, ...]
    rules: dict[str, str]
    edges: int
    cut: int

    def __iter__(self) -> Iterator[Scale]:
        """Return the factors in order."""
        return iter(self.scales)

    def summary(self) -> str:
        """Return one line with the counts."""
        kinds = Counter(self.rules.values())
        rules = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return (
            f"{len(self.scales)} scales; {self.cut} cut edges of {self.edges}; "
            f"{len(self.residuals)} residual additions; rules: {rules}"
        )

    def explain(self, unit: str) -> str:
        """Return the factors of a unit, a line each.

        Raises:
            UnitScalingError: There is no such unit.
        """
        if unit not in self.rules:
            msg = (
                f"no op {unit!r} with a gradient in this scale plan; there are "
                f"{', '.join(self.rules)}"
            )
            raise UnitScalingError(msg)
        found = [str(scale) for scale in self.scales if scale.unit == unit]
        return "\n".join([f"{unit}: {self.rules[unit]}", *found])

    def diff(self, other: "ScalePlan") -> list[str]:
        """Return the lines in which two plans differ, marked ``-`` and ``+``."""
        ours = [f"{scale.unit}: {scale}" for scale in self.scales]
        theirs = [f"{scale.unit}: {scale}" for scale in other.scales]
        return [
            *(f"- {line}" for line in ours if line not in theirs),
            *(f"+ {line}" for line in theirs if line not in ours),
        ]

    def to_json(self) -> str:
        """Return the plan as JSON."""
        scales = [_stored(scale) for scale in self.scales]
        return json.dumps(vars(self) | {"scales": scales}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ScalePlan":
        """Return a plan from JSON."""
        stored: dict[str, Any] = json.loads(text)
        scales = [
            Scale(
                **{
                    **scale,
                    "forward": from_json(scale["forward"]),
                    "backward": from_json(scale["backward"]),
                }
            )
            for scale in stored["scales"]
        ]
        return cls(
            tuple(scales),
            tuple(stored["residuals"]),
            stored["rules"],
            stored["edges"],
            stored["cut"],
        )

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "ScalePlan":
        """Return the plan of a file that :meth:`save` wrote."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def __str__(self) -> str:
        """Return the summary, and a line for each factor."""
        lines = [f"  {scale.unit}: {scale}" for scale in self.scales]
        return "\n".join([self.summary(), *lines])


def _stored(scale: Scale) -> dict[str, Any]:
    """Return a scale as values of JSON."""
    factors = {"forward": scale.forward, "backward": scale.backward}
    plain = {
        key: factor.to_json() if hasattr(factor, "to_json") else factor
        for key, factor in factors.items()
    }
    return vars(scale) | plain
