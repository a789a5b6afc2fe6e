"""Run a program with the factors of its scale plan."""

from collections.abc import Iterable, Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor
from amprewrite.frameworks.jaxpr.program.program import (
    Number,
    RegionBoundary,
    Step,
    names_of,
)
from amprewrite.unit_scaling.graph import ScalePlan, Unit, resolve
from amprewrite.unit_scaling.graph.scales import OUTPUT
from amprewrite.unit_scaling.jax.reading.functions import Functional
from amprewrite.unit_scaling.jax.scale import scale

Factors = tuple[Any, Any]


class ScaleWriter(ProgramExecutor):
    """Executor of one program with the factors of one plan.

    Attributes:
        reading: The program and its graph.
        before: Factors of operands: by op and by value, with the name of the unit.
        after: Factors of results, by value, with the op that makes it.
        returned: Factors of what is returned, by value.
    """

    def __init__(
        self, program: Functional, units: Sequence[Unit], plan: ScalePlan
    ) -> None:
        """Find where factors stand; several at one place are multiplied."""
        super().__init__(program.reading.program)
        self.reading, self.uniform = program.reading, program.uniform
        self.before: dict[tuple[str, str, int], tuple[Any, Factors]] = {}
        self.after: dict[tuple[str, str], Factors] = {}
        self.returned: dict[str, Factors] = {}
        named = {unit.name: unit for unit in units}
        for found in plan:
            factors = (found.forward, found.backward)
            if found.index == OUTPUT:
                self.returned[found.value] = factors
                continue
            if found.index is None:
                key = (found.unit, found.value)
                self.after[key] = _times(self.after.get(key), factors)
                continue
            for place in self._places(program, named[found.unit], found):
                group = (found.unit, found.index, found.value)
                before = self.before.get(place)
                both = _times(before and before[1], factors)
                self.before[place] = (group, both)

    def _places(self, program: Functional, unit: Unit, found: Any) -> Iterable[Any]:
        """Yield each use of a value by a unit: op, value and operand index."""
        for op in unit.ops:
            function = program.functions.get(op.name)
            if function is None and found.index >= 0:
                yield op.name, found.value, self._operand(op.name, found.index)
                continue
            for name in function.members if function else (op.name,):
                yield name, found.value, -1

    def _operand(self, op: str, index: int) -> int:
        """Return the index among all named operands, of one among those that vary."""
        step = self.reading.steps.get(op)
        if step is None:  # a boundary, which reads one value
            return index
        names = names_of(step.operands)
        return [i for i, name in enumerate(names) if name not in self.uniform][index]

    def outputs(self, env: Env) -> list[Any]:
        """Return the outputs with their factors."""
        for name, factors in self.returned.items():
            env[name] = self._scaled(env[name], factors)
        return super().outputs(env)

    def on_read(self, op: str, index: int, name: str, env: Env) -> Any:
        """Return a value as an op reads it; all ops of a unit read one product."""
        before = self.before.get((op, name, -1)) or self.before.get((op, name, index))
        if before is None:
            return env[name]
        group, factors = before
        if group not in env:
            env[group] = self._scaled(env[name], factors)
        return env[group]

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        """Return a result as other ops read it."""
        factors = self.after.get((step.name, name))
        return value if factors is None else self._scaled(value, factors)

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        """Return a value that passes into or out of a body; a number as an array."""
        if isinstance(value, Number):
            return jnp.asarray(value.value, value.dtype)
        return super().on_pass(boundary, value)

    def _scaled(self, value: Any, factors: Factors) -> Any:
        forward, backward = (resolve(f, self._extent) for f in factors)
        return scale(value, forward, backward)

    def _extent(self, name: str, axis: int) -> Any:
        """Return an extent; one that is a symbol as a scalar of the program."""
        found = self.program.avals[name].shape[axis]
        return found if isinstance(found, int) else jnp.asarray(found, jnp.float32)


def _times(one: Factors | None, other: Factors) -> Factors:
    """Return the products of two pairs of factors."""
    return other if one is None else (one[0] * other[0], one[1] * other[1])
