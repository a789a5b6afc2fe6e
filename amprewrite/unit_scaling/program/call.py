"""One op of a program with its operands, as rules of both frameworks read it."""

from typing import Any

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.unit_scaling.graph import Differentiable, extent


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
