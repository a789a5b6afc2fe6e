"""Run a program as traced, in full precision, as the baseline of roundings.

It computes the function without printing, and contracts in the precision of its
operands even if a device would use fewer digits by default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import Call, named_arrays
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env
from amprewrite.frameworks.jaxpr.interpret.interpreter import abs_square
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import Dtypes, Wide
from amprewrite.frameworks.jaxpr.program.program import (
    Program,
    Step,
    dtype_name,
    names_of,
)
from amprewrite.ir import ProgramGraph

PRINTS = frozenset(("debug_callback", "debug_print"))
"""Primitives that only print or report."""


@dataclass(frozen=True)
class Sample:
    """A program and the arrays of one call.

    Attributes:
        program: The program.
        graph: Its program graph.
        inputs: The arrays, in the program's order.
        result: Structure and names of the outputs.
    """

    program: Program
    graph: ProgramGraph
    inputs: Sequence[Any]
    result: "Result"

    def named(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return outputs of the program by their paths."""
        return self.result.named(outputs)

    def on(self, constants: Mapping[str, Any]) -> Program:
        """Return the program with other arrays for its closed-over ones.

        A compiled function copies its closed-over arrays into its code.
        """
        return replace(self.program, constants=constants)


@dataclass(frozen=True)
class Result:
    """Structure and names of a function's result.

    Attributes:
        call: Structure of the whole result.
        pick: Selects the user's part of it.
    """

    call: Call
    pick: Any

    def named(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays by their paths."""
        return named_arrays(self.pick(self.call.arguments(list(outputs))))


class Exact(Wide):
    """Executor that binds every equation as traced, at full precision."""

    def __init__(self, program: Program) -> None:
        """Wrap the program."""
        super().__init__(program, {})

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Return the results of a step; one that only prints is not run."""
        return () if step.primitive in PRINTS else super().on_step(step, env)

    def operands(self, step: Step, env: Env) -> list[Any]:
        """Return the operands of a step; a value that it reads twice is read once."""
        names = names_of(step.operands)
        read: dict[str, Any] = {}
        for index, name in enumerate(names):
            if name not in read:
                read[name] = self.on_read(step.name, index, name, env)
        dtypes = iter(step.wants or ("",) * len(names))
        return [
            _in_dtype(read[atom], next(dtypes))
            if isinstance(atom, str)
            else self.number(step, atom)
            for atom in step.operands
        ]

    def evaluate(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step on its operands, as they are."""
        if step.conjugates:
            return [abs_square(operands[0])]
        return super().evaluate(step, operands)

    def params(self, step: Step, dtypes: Dtypes) -> dict[str, Any]:
        """Return the parameters of a step, at the highest precision."""
        params = super().params(step, dtypes)
        if "precision" in params and params["precision"] is None:
            params["precision"] = (lax.Precision.HIGHEST,) * 2
        return params


def _in_dtype(value: Any, dtype: str) -> Any:
    """Return ``value`` in ``dtype``; as it is if that is empty."""
    if not dtype or dtype_name(value) == dtype:
        return value
    return lax.convert_element_type(value, jnp.dtype(dtype))
