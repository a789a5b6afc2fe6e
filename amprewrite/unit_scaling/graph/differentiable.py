"""The part of a program that gradients pass through."""

from dataclasses import dataclass

from amprewrite.ir import Op, ProgramGraph

STOPS = frozenset({
    "bernoulli", "binomial", "ceil", "detach", "fix", "floor", "floor_divide",
    "heaviside", "nextafter", "normal", "poisson", "rand_like", "randint_like",
    "randn_like", "round", "sgn", "sign", "trunc", "while",
})  # fmt: skip
"""Ops with a float result through which no gradient passes: steps, draws, loops."""

Closing = tuple[tuple[str, str], ...]
"""Pairs of values that are one: carry-out and carry-in of a loop."""


@dataclass(frozen=True)
class Differentiable:
    """Values and ops of a program that gradients pass.

    Attributes:
        graph: The program.
        values: Names of the values with a gradient, parameters and inputs among them.
        ops: Ops with an operand and a result of these, in program order.
        outputs: Values at which gradients enter.
    """

    graph: ProgramGraph
    values: frozenset[str]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    def operands(self, op: Op) -> list[int]:
        """Return the indices of the operands of an op that get a gradient."""
        return [i for i, name in enumerate(op.operands) if name in self.values]


def differentiable(graph: ProgramGraph, closing: Closing = ()) -> Differentiable:
    """Return the values between float parameters or inputs, and the outputs.

    Where an output is a scalar it is a loss: gradients come from scalars alone. Float
    inputs count like parameters: somebody may want their gradient.

    Args:
        graph: The program.
        closing: Carries of its loops: what leaves a turn enters the next one.
    """
    reached = _reached(graph, closing)
    state = {position for position, _ in graph.states}
    written = [name for i, name in enumerate(graph.outputs) if i not in state]
    outputs = [name for name in dict.fromkeys(written) if name in reached]
    scalars = [name for name in outputs if not graph.values[name].shape]
    outputs = scalars or outputs
    wanted = set(outputs)
    while True:
        ops = _wanted(graph, reached, wanted)
        before = {a for a, b in closing if a in reached and b in wanted}
        if before <= wanted:
            break
        wanted |= before
    return Differentiable(
        graph, frozenset(wanted & reached), tuple(reversed(ops)), tuple(outputs)
    )


def _stops(op: Op) -> bool:
    """Return whether no gradient passes an op; factories of tensors are such."""
    return op.canonical in STOPS or op.traits.group == "factory"


def _reached(graph: ProgramGraph, closing: Closing) -> set[str]:
    """Return the float values that depend on a float parameter or input."""
    reached = {v.name for v in graph.inputs("parameter", "input") if v.is_float}
    while True:
        for op in graph.ops:
            if not _stops(op) and reached.intersection(op.operands):
                reached |= {name for name in op.results if graph.values[name].is_float}
        after = {b for a, b in closing if a in reached and graph.values[b].is_float}
        if after <= reached:
            return reached
        reached |= after


def _wanted(graph: ProgramGraph, reached: set[str], wanted: set[str]) -> list[Op]:
    """Return the ops that lead to ``wanted``, the last one first, and add to it."""
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if _stops(op) or not wanted.intersection(op.results):
            continue
        used = reached.intersection(op.operands)
        if used and reached.intersection(op.results):
            wanted |= used
            ops.append(op)
    return ops
