"""From a traced program to one with factors: analysis, rules, plan, writing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.ir.graph import ProgramGraph, ValueKind
from amprewrite.unit_scaling.graph import (
    Differentiable,
    ScalePlan,
    Unit,
    UnitRule,
    differentiable,
)
from amprewrite.unit_scaling.jax.program.rules import Known, find_rules
from amprewrite.unit_scaling.jax.program.write_scales import ScaleWriter
from amprewrite.unit_scaling.jax.reading.functions import with_functions
from amprewrite.unit_scaling.jax.reading.program import Reading, read_program
from amprewrite.unit_scaling.program import plan_scales
from amprewrite.unit_scaling.settings import Settings


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
