"""Scales of the arrays of a JAX function: every equation of its program is seen."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.watching import Seen, name_of, run, values_of
from amprewrite.unit_scaling.jax.scale import amprewrite_scale
from amprewrite.unit_scaling.tracking import Scale, Tracked

Array = Any


def track(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tracked]:
    """Return the scales of parameters, and of every float array of an equation.

    Raises:
        ArgumentError: No output is a float array, or there is no argument.
    """
    found = run(model, args, kwargs)
    triples = zip(found.names, found.parameters, found.gradients, strict=True)
    rows = [
        Tracked(name, "", tuple(np.shape(x)), _scale(x), _scale(g), parameter=True)
        for name, x, g in triples
    ]
    return rows + [
        Tracked(
            seen.name,
            seen.where,
            tuple(np.shape(seen.value)),
            _scale(seen.value),
            _scale(seen.gradient),
            scaled=_scaled(seen),
        )
        for seen in found.made
    ]


def _scaled(seen: Seen) -> str | None:
    """Return the name of the array that a result is but for a factor of unit scaling.

    Empty where it is none of an equation, None where there is no such factor.
    """
    return seen.first if name_of(seen.eqn) == amprewrite_scale.__name__ else None


def _scale(x: Array) -> Scale:
    return Scale.of(values_of(x))
