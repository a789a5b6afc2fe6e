"""Check for overflow: run a program once if its low dtype has a small range.

float16 ends at 65504. A program with larger values silently returns infinities or NaN;
one run on the arguments of the conversion shows it.
"""

from collections.abc import Container
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, jnp
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Sample
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.probes.value_watch import count_iterations
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Step
from amprewrite.plan.facts import is_narrow, overflow_warning


def overflows(prepared: Prepared, closed: Any, sample: Sample) -> tuple[str, ...]:
    """Return a warning if outputs are not finite where the original's are.

    Args:
        prepared: The program and its plan.
        closed: The traced ClosedJaxpr.
        sample: The program and the arrays of a call. Nothing is run if the low dtype
            has the range of the full one, if the arrays have no values, or if the
            program has side effects (it prints, or calls back).
    """
    inputs = list(sample.inputs)
    known = all(map(_has_value, inputs))
    if not is_narrow(prepared.plan) or closed.effects or not known:
        return ()
    with tracers.evaluated_now():
        ours = jax.jit(prepared.run)(inputs)
        if all(map(_is_finite, ours)):
            return ()
        theirs = jax.jit(jex.jaxpr_as_fun(closed))(*inputs)
        if not any(map(_differs, ours, theirs)):
            return ()
        first = _first(prepared, sample)
    return (overflow_warning(prepared.plan, prepared.plan.by_op.get(first)),)


def _has_value(value: Any) -> bool:
    array = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return array and not tracers.is_tracer(value)


def _is_finite(value: Any) -> bool:
    """Return whether a value has no infinity and no NaN; a tracer counts as finite."""
    if tracers.is_tracer(value) or not is_inexact(dtype_name(value)):
        return True
    return bool(jnp.isfinite(value).all())


def _differs(low: Any, wide: Any) -> bool:
    """Return whether an element of ``wide`` is finite and that of ``low`` is not."""
    if not is_inexact(dtype_name(wide)):
        return False
    return bool((jnp.isfinite(wide) & ~jnp.isfinite(low)).any())


def _first(prepared: Prepared, sample: Sample) -> str:
    """Return the first op that overflows only in the converted program, if any."""
    infinite: set[str] = set()

    def look(op: str, name: str, value: Any) -> None:
        del op
        if not _is_finite(value):
            infinite.add(name)

    count_iterations(sample, look)
    seeker = _Seeker(prepared, infinite)
    with jax.disable_jit():
        seeker(sample.inputs)
    return seeker.op


class _Seeker(Writer):
    """Executor that records the first op with a new overflow."""

    def __init__(self, prepared: Prepared, infinite: Container[str]) -> None:
        super().__init__(prepared)
        self.infinite, self.op = infinite, ""

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        if not self.op and name not in self.infinite and not _is_finite(value):
            self.op = step.name
        return value
