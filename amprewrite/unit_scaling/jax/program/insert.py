"""From a traced program to one with factors: analysis, rules, plan, writing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor
from amprewrite.frameworks.jaxpr.program.program import (
    Number,
    RegionBoundary,
    Step,
    names_of,
)
from amprewrite.ir.graph import ProgramGraph, ValueKind
from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.graph.scales import OUTPUT, ScalePlan, resolve
from amprewrite.unit_scaling.graph.units import Differentiable, Unit, differentiable
from amprewrite.unit_scaling.jax.program.rules import Known, find_rules
from amprewrite.unit_scaling.jax.reading.functions import Functional, with_functions
from amprewrite.unit_scaling.jax.reading.program import Reading, read_program
from amprewrite.unit_scaling.jax.scale import scale
from amprewrite.unit_scaling.program import Settings, plan_scales

# Run a program with the factors of its scale plan.

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


@dataclass(frozen=True)
class Scaled:
    """One program with its factors.

    Attributes:
        scales: The scale plan.
        writer: Runs the program.
        inputs: Names of its inputs, in their order.
        live: Names of the values with a gradient.
    """

    scales: ScalePlan
    writer: ScaleWriter
    inputs: tuple[str, ...]
    live: frozenset[str]


def insert_scales(
    closed: Any,
    name_of: Callable[[int], str],
    kinds: Mapping[int, ValueKind],
    settings: Settings,
    states: tuple[tuple[int, int], ...] = (),
    known: Known | None = None,
) -> Scaled:
    """Return a traced program with factors.

    Args:
        closed: The ClosedJaxpr.
        name_of: Returns the name of each input by its position.
        kinds: Kinds of the inputs that are more than inputs, by position.
        settings: How to scale.
        states: Outputs that replace an input, each with it, by position.
        known: Facts about other calls.

    Raises:
        UnitScalingError: An op has no rule, or nothing is differentiable.
        UnsupportedError: The program has factors already, or complex numbers, or maps
            over a mesh, or computes with symbols of ``jax.export``.
    """
    reading = read_program(closed, name_of, kinds, states)
    refuse_complex(reading.graph)
    _refuse_symbols(reading)
    program = with_functions(reading)
    _refuse_empty(program.live)

    def rules_of(units: Sequence[Unit], leave: frozenset[str]) -> dict[str, UnitRule]:
        return find_rules(program, units, leave, settings.mult, known or Known())

    units, plan = plan_scales(
        program.live,
        rules_of,
        settings,
        closing=reading.closing,
        elementwise=program.elementwise,
    )
    writer = ScaleWriter(program, units, plan)
    return Scaled(plan, writer, reading.program.inputs, program.live.values)


def refuse_complex(graph: ProgramGraph) -> None:
    """Refuse complex numbers that depend on parameters or inputs.

    Raises:
        UnsupportedError: Names the first op that makes some.
    """
    reached = {v.name for v in graph.inputs("parameter", "input")}
    for op in graph.ops:
        if not reached.intersection(op.operands):
            continue
        reached |= set(op.results)
        if any(graph.values[n].dtype.startswith("complex") for n in op.results):
            msg = (
                f"unit scaling of complex arrays has no rule: {op.native} at "
                f"{op.source}; write it with real and imaginary parts"
            )
            raise UnsupportedError(msg)


def _refuse_symbols(reading: Reading) -> None:
    """Refuse ops that compute with an extent without a number: it has no scale.

    Raises:
        UnsupportedError: Names the first one.
    """
    symbols = {
        name
        for step in reading.steps.values()
        if step.primitive == "dim_as_value"
        for name in step.results
    }
    live = differentiable(reading.graph, reading.closing)
    passed = {op.name for op in live.ops}
    for op in reading.graph.ops:
        if not symbols.intersection(op.operands):
            continue
        if op.name in passed:
            msg = (
                f"{op.native} at {op.source} computes with an extent that is a symbol; "
                "trace the scaled function with numbers as extents, for each batch"
            )
            raise UnsupportedError(msg)
        symbols |= set(op.results)


def _refuse_empty(live: Differentiable) -> None:
    """Refuse a program without a gradient.

    Raises:
        UnitScalingError: Nothing is differentiable.
    """
    if not live.ops:
        msg = (
            "no float output depends on a float parameter or input: there is nothing "
            "to scale; want a function with an output that is differentiated"
        )
        raise UnitScalingError(msg)
