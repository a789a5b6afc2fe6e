"""Masks of a softmax: those that a program makes itself, and those of the example."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.ir import Op
from amprewrite.unit_scaling.jax.program.call import Call
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.jax.reading.program import Reading
from amprewrite.unit_scaling.jax.reading.slices import Slicer
from amprewrite.unit_scaling.rules.softmax import visible_logits

MASKS = frozenset({"add", "sub", "where"})
"""Ops that hide logits."""
LARGEST = 2**24
"""Elements of the logits above which they are not computed."""


def known_masks(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that masks may be made of: integers and truth values.

    Args:
        inputs: Arrays of the example by name; none if the program is traced for a
            transformation, which knows no numbers.
    """
    if any(tracers.is_tracer(x) for x in inputs.values()):
        return {}
    return {
        name: np.asarray(x)
        for name, x in inputs.items()
        if jnp.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    }


def visible_rows(
    call: Call, masks: Mapping[str, Any] | None = None
) -> dict[int, int] | None:
    """Return how many rows of a softmax have how many logits that no mask hides.

    Args:
        call: The softmax.
        masks: Values of integer inputs. Others are masks of ones: a trace has no
            numbers for them.

    Returns:
        None where there is no mask, or the logits have symbols or too many elements.
    """
    function = call.function
    if function is None:
        return None
    for op in mask_ops(call):
        visible = _visible(call.program.slicer, op, function.size, masks or {})
        if visible is not None:
            return visible
    return None


def mask_ops(call: Call) -> list[Op]:
    """Return the ops before a softmax, or in it, that may hide logits.

    One that a mask of ones makes do nothing counts as a part of the softmax.
    """
    function, slicer = call.function, call.program.slicer
    graph = slicer.reading.graph
    before = graph.producer.get(call.op.operands[0])
    members = function.members if function else frozenset[str]()
    inside = [op for op in graph.ops if op.name in members]
    known = slicer.impure | slicer.uniform
    return [
        op
        for op in (before, *inside)
        if op and op.canonical in MASKS and not known.issuperset(op.operands)
    ]


def _visible(
    slicer: Slicer, mask: Op, size: int, masks: Mapping[str, Any]
) -> dict[int, int] | None:
    """Return the number of rows by their number of visible logits; None if all are."""
    live = [n for n in mask.operands if n in slicer.live.values]
    avals = slicer.reading.program.avals
    shape = avals[mask.results[0]].shape
    if len(live) != 1 or not all(isinstance(d, int) for d in shape):
        return None
    if np.prod(shape) > LARGEST or shape[-1:] != (size,):
        return None
    given = {**masks, live[0]: np.zeros(avals[live[0]].shape, np.float32)}
    with tracers.evaluated_now():
        values = Evaluator(_through_loops(slicer.reading), given, np.float32, int)
        logits = np.broadcast_to(np.asarray(values.value(mask.results[0])), shape)
    visible = visible_logits(logits, -1)
    return None if set(visible) == {size} else visible


def _through_loops(reading: Reading) -> Reading:
    """Return a reading in which constants of loops have the values from outside."""
    entered = {
        op.results[0]: op.operands[0]
        for op in reading.graph.ops
        if op.name in reading.turns and op.operands
    }
    return replace(reading, same={**reading.same, **entered})
