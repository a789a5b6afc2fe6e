"""What the sensitivities of both frameworks have in common: rows, and refusals."""

from collections.abc import Container, Mapping, Sequence
from math import inf, isfinite

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.ir import Op
from amprewrite.plan.sensitivity import EightBits, Key, Probes, Sensitivity

FAILURES = (RuntimeError, TypeError, ValueError)
"""Errors that frameworks raise for an op without a gradient, or without a kernel.

Those of both are RuntimeErrors where a kernel, or a rule, is not implemented.
"""


def sensitivity_of(
    rows: Mapping[Key, Sequence[float]],
    probes: Probes,
    beyond: Container[Key],
    peaks: Mapping[str, float],
) -> Sensitivity:
    """Return the mean square of each rounding over random directions.

    Args:
        rows: The change of the outputs along each direction, by rounding.
        probes: The roundings.
        beyond: Roundings of values beyond the low range, which are infinite.
        peaks: Largest magnitudes of these values, by name.
    """
    count = len(next(iter(rows.values()), ()))
    every: dict[Key, float] = {}
    for key, row in rows.items():
        square = sum(x * x for x in row) / count
        every[key] = inf if key in beyond or not isfinite(square) else square
    return Sensitivity(
        {k: error for k, error in every.items() if isinstance(k, str)},
        {k: error for k, error in every.items() if isinstance(k, tuple)},
        count,
        peaks,
        probes.weights,
        {key: tuple(row) for key, row in rows.items()},
        {k: error for k, error in every.items() if isinstance(k, EightBits)},
    )


def value_of(key: str | tuple[str, str]) -> str:
    """Return the name of the rounded value."""
    return key if isinstance(key, str) else key[0]


def place_of(op: Op) -> str:
    """Return the name of an op, and its place in the source."""
    where = op.source or op.path
    return f"{op.native} (%{op.name})" + (f" at {where}" if where else "")


def no_gradient(op: Op | None, error: Exception | None, cure: str) -> UnsupportedError:
    """Return the error that an op cannot be differentiated.

    Args:
        op: The op; None if it is not known.
        error: The error of the framework; None if it raised none.
        cure: What to do, beside leaving out the tolerance.
    """
    line = str(error).strip().partition("\n")[0] if error else "it has no gradient"
    where = "an op of the model" if op is None else place_of(op)
    msg = (
        f"tolerance needs gradients, and {where} cannot be differentiated: {line}; "
        f"{cure}, or leave tolerance=None"
    )
    return UnsupportedError(msg)


def no_gradients(error: Exception, what: str, cure: str) -> UnsupportedError:
    """Return the error of a trained program without gradients to bound.

    Args:
        error: The error of the framework.
        what: ``model`` or ``function``.
        cure: How to leave the gradients out.
    """
    line = str(error).strip().partition("\n")[0]
    msg = (
        f"tolerance bounds the gradients of a {what} that is trained with 8-bit "
        f"contractions, and they cannot be computed: {line}; {cure} to bound the "
        f"outputs alone"
    )
    return UnsupportedError(msg)


def no_floats(what: str) -> UnsupportedError:
    """Return the error that a model or function, ``what``, gives no floats."""
    msg = f"tolerance bounds the error of float outputs; this {what} gives none"
    return UnsupportedError(msg)


def not_finite(path: str, kind: str, op: Op | None, what: str) -> ToleranceError:
    """Return the error of a program that is not finite in full precision.

    Args:
        path: Path of the output.
        kind: ``NaN`` or ``infinities``.
        op: The first op with such a result; None if it is not known.
        what: ``model`` or ``function``.
    """
    maker = f"; the first are made by {place_of(op)}" if op else ""
    msg = (
        f"output {path} has {kind} in full precision already{maker}; give arguments "
        f"for which the {what} is finite"
    )
    return ToleranceError(msg)
