"""The rule of every unit of a program: by name, by quadrature, or by a sample."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.graph import Unit, UnitRule
from amprewrite.unit_scaling.jax.program.call import Call
from amprewrite.unit_scaling.jax.program.masks import (
    known_masks,
    mask_ops,
    visible_rows,
)
from amprewrite.unit_scaling.jax.program.measured_rules import (
    op_by_sample,
    region_by_sample,
    region_rule,
)
from amprewrite.unit_scaling.jax.program.op_rules import rule_by_name
from amprewrite.unit_scaling.jax.reading.functions import Functional
from amprewrite.unit_scaling.program import masked, unscaled

Samples = dict[Any, UnitRule]
"""Rules that were measured, by op and extents; with ``any`` the first extent."""


@dataclass(frozen=True)
class Known:
    """Facts about other calls of a program.

    Attributes:
        samples: Rules that were measured for other extents; new ones are added.
        example: Arrays of the call that masks are counted of; empty if it is another.
    """

    samples: Samples = field(default_factory=Samples)
    example: Sequence[Any] = ()


def find_rules(
    program: Functional,
    units: Sequence[Unit],
    leave: frozenset[str],
    mult: Mapping[str, float],
    known: Known,
) -> dict[str, UnitRule]:
    """Return the rule of each unit but those named in ``leave``.

    Args:
        program: The program.
        units: Its units.
        leave: Names of the residual additions.
        mult: Multipliers by name of an elementwise function.
        known: Facts about other calls.

    Raises:
        UnitScalingError: An op has no rule; a multiplier is for no op.
    """
    names, samples = set[str](), known.samples
    inputs = program.reading.program.inputs
    masks = known_masks(dict(zip(inputs, known.example, strict=False)))
    found: dict[str, UnitRule] = {}
    for unit in units:
        if unit.name not in leave:
            try:
                found[unit.name] = _of_masked(program, unit, samples, masks) or _of(
                    program, unit, mult, names, samples
                )
            except UnitScalingError:
                if not unit.is_of_loss:
                    raise
                found[unit.name] = unscaled("a part of the loss is left as it is")
    if unused := [name for name in mult if name not in names]:
        msg = (
            f"mult names {', '.join(unused)}; want elementwise functions of the "
            f"program: {', '.join(sorted(names)) or 'there are none'}"
        )
        raise UnitScalingError(msg)
    return found


def _of_masked(
    program: Functional, unit: Unit, samples: Samples, masks: Mapping[str, Any]
) -> UnitRule | None:
    """Return the rule of a softmax with the mask of the example, if it has one.

    It holds for all calls: a trace has no numbers for the masks of others.
    """
    call = Call(unit.ops[-1], program)
    function = call.function
    if call.op.canonical != "softmax" or function is None or not mask_ops(call):
        return None
    _, *rest = program.reading.graph.values[unit.edges[0].value].shape
    key = (unit.name, "mask", tuple(rest))
    if masks and (visible := visible_rows(call, masks)):
        samples[key] = masked(visible, function.size)
    return samples.get(key)


def _of(
    program: Functional,
    unit: Unit,
    mult: Mapping[str, float],
    names: set[str],
    samples: Samples,
) -> UnitRule:
    call = Call(unit.ops[-1], program)
    if not unit.is_region:
        rule = rule_by_name(call)
        if rule is not None:
            return rule
        indices = [edge.index for edge in unit.edges]
        return _kept(samples, call, unit, lambda: op_by_sample(call, indices))
    if all(op.canonical == "cast" for op in unit.ops):
        return unscaled("changes the dtype")
    if unit.has_statistic:
        region = functools.partial(region_by_sample, program, unit, call)
        return _kept(samples, call, unit, region)
    try:
        rule, name = region_rule(program, unit, call, mult)
    except UnitScalingError as error:
        return _without_integral(call, unit, samples, error)
    names.add(name)
    return rule


def _without_integral(
    call: Call, unit: Unit, samples: Samples, error: UnitScalingError
) -> UnitRule:
    """Return the rule of a region that cannot be integrated, or raise the error."""
    if len(unit.ops) > 1 or call.op.native != "custom_jvp_call":
        raise error
    return _kept(samples, call, unit, lambda: _of_custom(call))


def _kept(
    samples: Samples, call: Call, unit: Unit, measure: Callable[[], UnitRule]
) -> UnitRule:
    """Return the rule that was measured for an op, and measure it once.

    Its forward factor is that of the first call with other first extents: the function
    of a small batch is that of a large one. Gradients follow the batch.
    """
    values = call.program.reading.graph.values
    shapes = tuple(values[edge.value].shape for edge in unit.edges)
    key = (unit.name, call.op.native, shapes)
    if key not in samples:
        found = measure()
        rows = tuple(("any", *shape[1:]) for shape in shapes)
        first = samples.setdefault((unit.name, call.op.native, rows), found)
        samples[key] = replace(found, forward=first.forward)
    return samples[key]


def _of_custom(call: Call) -> UnitRule:
    """Return the rule of a function with a derivative of its own, by a sample."""
    found = op_by_sample(call, [0])
    return UnitRule(found.forward, {-1: found.backward[0]}, found.kind, found.why)
