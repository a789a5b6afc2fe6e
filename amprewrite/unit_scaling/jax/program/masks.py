"""Masks of a softmax that a program makes itself, such as causal ones."""

import numpy as np

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.unit_scaling.jax.program.call import Call
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.rules.softmax import visible_logits

MASKS = frozenset({"add", "sub", "where"})
"""Ops that hide logits."""
LARGEST = 2**24
"""Elements of the logits above which they are not computed."""


def visible_rows(call: Call) -> dict[int, int] | None:
    """Return how many rows of a softmax have how many logits that no mask hides.

    Masks among the arguments are those of ones: a trace has no numbers for them.

    Args:
        call: The softmax; its operand is what the mask made.

    Returns:
        None where there is no mask, or the logits have symbols or too many elements.
    """
    reading, function = call.program.reading, call.function
    (name,) = call.op.operands
    made = reading.graph.producer.get(name)
    if function is None or made is None or made.canonical not in MASKS:
        return None
    live = [n for n in made.operands if n in call.program.live.values]
    shape = reading.program.avals[name].shape
    if len(live) != 1 or not all(isinstance(d, int) for d in shape):
        return None
    if np.prod(shape) > LARGEST or shape[-1] != function.size:
        return None
    zeros = np.zeros(reading.program.avals[live[0]].shape, np.float32)
    with tracers.evaluated_now():
        values = Evaluator(reading, {live[0]: zeros}, np.float32, int)
        logits = np.broadcast_to(np.asarray(values.value(name)), shape)
    visible = visible_logits(logits, -1)
    return None if set(visible) == {function.size} else visible
