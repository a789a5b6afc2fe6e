"""One op of a traced program with its arguments, as rules read them."""

from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.program.program import Step
from amprewrite.ir import Op, Value
from amprewrite.unit_scaling.graph import extent
from amprewrite.unit_scaling.jax.reading.functions import Function, Functional


@dataclass(frozen=True)
class Call:
    """One op, with the facts that its rule needs.

    Attributes:
        op: The op.
        program: The program that it is in.
    """

    op: Op
    program: Functional

    @property
    def step(self) -> Step | None:
        """The step; None at the boundary of a body."""
        return self.program.reading.steps.get(self.op.name)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of its primitive."""
        return {} if self.step is None else self.step.eqn.params

    @property
    def function(self) -> Function | None:
        """The function that it stands for, if any."""
        return self.program.functions.get(self.op.name)

    def value(self, index: int) -> Value:
        """Return an operand."""
        return self.program.reading.graph.values[self.op.operands[index]]

    def shape(self, index: int) -> tuple[Any, ...]:
        """Return the extents of an operand: numbers, and formulas of symbols."""
        return shape_of(self.value(index))

    @property
    def result(self) -> tuple[Any, ...]:
        """The extents of the first result."""
        return shape_of(self.program.reading.graph.values[self.op.results[0]])

    def is_live(self, index: int) -> bool:
        """Return whether an operand is given and has a gradient."""
        operands = self.op.operands
        return index < len(operands) and operands[index] in self.program.live.values

    def is_bias(self, index: int) -> bool:
        """Return whether an operand of a sum is a bias: a parameter, perhaps moved.

        It has one dimension, or those that a weight gives to the other operand.
        """
        slicer, name = self.program.slicer, self.op.operands[index]
        if slicer.is_parameter(name):
            return True
        graph = self.program.reading.graph
        made = graph.producer.get(self.op.operands[1 - index])
        source = graph.values[slicer.origin(name)]
        if made is None or made.canonical != "matmul" or source.kind != "parameter":
            return False
        params = self.program.reading.steps[made.name].eqn.params
        contracted, batch = params["dimension_numbers"]
        weight = graph.values[made.operands[1]].shape
        held = {*contracted[1], *batch[1]}
        free = [d for axis, d in enumerate(weight) if axis not in held]
        return [d for d in graph.values[name].shape if d != 1] == free

    @property
    def where(self) -> str:
        """The op, its module and its line, for messages."""
        path = f" of {self.op.path}" if self.op.path else ""
        line = f" at {self.op.source}" if self.op.source else ""
        return f"{self.op.native}{path}{line}"


def shape_of(value: Value) -> tuple[Any, ...]:
    """Return the extents of a value: numbers, and formulas where they are symbols."""
    return tuple(
        d if isinstance(d, int) else extent(value.name, i)
        for i, d in enumerate(value.shape)
    )
