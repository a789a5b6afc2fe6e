"""Errors of gradients by 8-bit contractions, each of them measured alone.

A contraction that rounds to 8 bits changes gradients in many places: by its operands in
the forward pass, which both of its derivatives read again, and by the rounding of the
gradient that arrives. So it is not predicted from single roundings: the gradients are
computed with this contraction alone in 8 bits. The errors of several contractions are
independent, and add up as squares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from amprewrite.errors import ToleranceError
from amprewrite.measure.runs import Array, Run
from amprewrite.plan import Plan
from amprewrite.plan.facts import Gradients

Named = Mapping[str, Array]
"""Gradients by the names of the parameters."""


NO_FORMATS: Mapping[str, str] = {
    "forward": "",
    "backward": "",
    "scaling": "",
    "kernel": "",
}
"""Fields of a decision that rounds nothing to 8 bits."""


def without_eight_bits(plan: Plan, kept: str = "") -> Plan:
    """Return ``plan`` without 8-bit formats, except for those of the op ``kept``."""
    decisions = tuple(
        d if d.op == kept else replace(d, **NO_FORMATS) for d in plan.decisions
    )
    return replace(plan, decisions=decisions)


def measure_gradients(
    reference: Run, alone: Iterable[tuple[str, Named]], low_outputs: float
) -> Gradients:
    """Return the errors of the gradients.

    Args:
        reference: A run in full precision, with gradients.
        alone: Gradients with one contraction at a time in 8 bits, with its op; the
            first ones are without any.
        low_outputs: Predicted squared error of the outputs without any.

    Raises:
        ToleranceError: A gradient is not finite in full precision.
    """
    wanted, rest = reference.gradients, iter(alone)
    broken = [name for name, array in wanted.items() if not np.isfinite(array).all()]
    if broken:
        msg = (
            f"the gradient of {broken[0]} is not finite in full precision already; "
            f"give arguments for which it is, or bound outputs alone, without training"
        )
        raise ToleranceError(msg)
    _, base = next(rest)
    return Gradients(
        sizes=_changes(wanted, {}),
        counts={name: array.size for name, array in wanted.items()},
        eight={op: _changes(found, base) for op, found in rest},
        low=_changes(base, wanted),
        low_outputs=low_outputs,
    )


def relative_change(found: Run, reference: Run, gradients: Gradients) -> float:
    """Return the relative L2 error of all gradients of a run together.

    It is infinite if one of them is not finite.
    """
    changes = _changes(found.gradients, reference.gradients)
    if not np.isfinite(list(changes.values())).all():
        return inf
    return gradients.relative(changes).error


def _changes(found: Named, base: Named) -> dict[str, float]:
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            name: float(np.linalg.norm(array - base.get(name, 0.0)))
            for name, array in found.items()
        }
