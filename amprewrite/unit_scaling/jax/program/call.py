"""One op of a traced program with its arguments, as rules read them."""

from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.program.program import Step
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling.graph import Differentiable
from amprewrite.unit_scaling.jax.reading.functions import Function, Functional
from amprewrite.unit_scaling.program import OpCall


@dataclass(frozen=True)
class Call(OpCall):
    """One op, with the facts that its rule needs.

    Attributes:
        op: The op.
        program: The program that it is in.
    """

    op: Op
    program: Functional

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        return self.program.reading.graph

    @property
    def differentiable(self) -> Differentiable:
        """The part of the program that is differentiated."""
        return self.program.live

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

    def is_bias(self, index: int) -> bool:
        """Return whether an operand of a sum is a bias: a parameter, perhaps moved.

        It has one dimension, or those that a weight gives to the other operand.
        """
        slicer, name = self.program.slicer, self.op.operands[index]
        if slicer.is_parameter(name):
            return True
        graph = self.graph
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
