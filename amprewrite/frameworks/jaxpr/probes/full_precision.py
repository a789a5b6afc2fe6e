"""Run a program as traced, in full precision, as the baseline of roundings.

It computes the function without printing, and contracts in the precision of its
operands even if a device would use fewer digits by default.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amprewrite.frameworks.jaxpr.capture.output_paths import named_arrays
from amprewrite.frameworks.jaxpr.capture.trace import Call
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.frameworks.jaxpr.interpret.binders import abs_square
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import Dtypes, Wide, Widener
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Program, RegionBoundary, Step
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


class Exact(Widener):
    """Interpreter that binds every equation as traced, at full precision."""

    def __init__(self, program: Program) -> None:
        """Wrap the program."""
        super().__init__(Wide(program, {}))

    def run(self, steps: Iterable[Step], env: Env) -> None:
        """Run ``steps``, except those that only print."""
        super().run((s for s in steps if s.primitive not in PRINTS), env)

    def pass_boundary(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Any:
        """Return the value that passes by ``boundary``."""
        atom = boundary.reads[which]
        if not isinstance(atom, str):
            return self.made(
                boundary.makes, super().pass_boundary(boundary, env, which)
            )
        read = self.fed(atom, boundary.op, env[atom])
        passed = super().pass_boundary(boundary, {**env, atom: read}, which)
        return self.made(boundary.makes, passed)

    def fed(self, name: str, op: str, value: Any) -> Any:
        """Return a value as ``op`` reads it; probes override this."""
        del name, op
        return value

    def made(self, name: str, value: Any) -> Any:
        """Return a produced value; probes override this."""
        del name
        return value

    def _plain(self, step: Step, env: Env) -> list[Any]:
        named = [atom for atom in step.operands if isinstance(atom, str)]
        read = {name: self.fed(name, step.name, env[name]) for name in named}
        wanted = step.wants or ("",) * len(named)
        given = {
            str(i): lax.convert_element_type(read[name], jnp.dtype(dtype))
            if dtype and dtype_name(read[name]) != dtype
            else read[name]
            for i, (name, dtype) in enumerate(zip(named, wanted, strict=True))
        }
        supply = iter(given)
        operands = tuple(
            next(supply) if isinstance(atom, str) else atom for atom in step.operands
        )
        return self.computed(replace(step, operands=operands), given)

    def computed(self, step: Step, given: Env) -> list[Any]:
        """Return the results of a step on given operands; probes override this."""
        return list(map(self.made, step.results, self.evaluated(step, given)))

    def evaluated(self, step: Step, given: Env) -> list[Any]:
        """Return the results of a step with operands ``given``."""
        if step.conjugates:
            return [abs_square(given[str(step.operands[0])])]
        return super()._plain(step, given)

    def _bound(self, step: Step, operands: list[Any], dtypes: Dtypes) -> list[Any]:
        params = step.eqn.params
        if "precision" in params and params["precision"] is None:
            highest = (lax.Precision.HIGHEST,) * 2
            eqn = step.eqn.replace(params={**params, "precision": highest})
            step = replace(step, eqn=eqn)
        return super()._bound(step, operands, dtypes)
