"""Scale plans: which value of a program gets which factors, and why. Plain data."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.graph.formula import factor_text, from_json

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
