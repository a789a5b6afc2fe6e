"""Errors of an array against its reference, in plain numpy and float64.

Elements where the reference is not finite have no error and are left out of every
number but the counts; an element that is not finite where the reference is makes the
error infinite.
"""

from collections.abc import Iterable
from math import hypot, inf, isinf, log10, sqrt

import numpy as np
from numpy.typing import NDArray

from amprewrite.measure.runs import Held, blocks
from amprewrite.verify.rows import OutputError

Array = NDArray[np.float64]

TINY = 1e-280
"""Sum of squares below which squares may have underflowed.

A square that is lost is below 1e-307, and 1e-27 of the sum.
"""


def norm(values: Array) -> float:
    """Return the Euclidean norm, without overflow or underflow of the squares."""
    found = finite_norm(values)
    if found is not None:
        return found
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    scaled = values / largest
    return largest * float(np.sqrt(np.sum(scaled * scaled)))


def finite_norm(values: Array) -> float | None:
    """Return the Euclidean norm by a sum of squares; None if that is no safe one.

    If it is a number, all elements are finite.
    """
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(flat.dot(flat))
    return sqrt(square) if TINY < square < inf else None


def is_finite(values: Array) -> bool:
    """Return whether all elements are finite."""
    return finite_norm(values) is not None or bool(np.isfinite(values).all())


def block_parts(
    actual: Array, reference: Array, size: float | None = None
) -> tuple[float, float]:
    """Return :func:`parts` of arrays that are small enough to be copied.

    Args:
        actual: f64[*shape].
        reference: f64[*shape].
        size: Norm of the reference, if it is known.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        difference = actual - reference
    found = finite_norm(difference)
    if found is not None:
        return found, norm(reference) if size is None else size
    known = np.isfinite(reference)
    if not np.isfinite(actual[known]).all():
        return inf, norm(reference[known])
    return norm(difference[known]), norm(reference[known])


def parts(actual: Held, reference: Held) -> tuple[float, float]:
    """Return the norm of the difference and that of the reference.

    Args:
        actual: f64[*shape].
        reference: f64[*shape].

    Returns:
        Both norms over the elements where the reference is finite.
    """
    rows = [block_parts(one, exact) for one, exact in blocks(actual, reference)]
    return hypot(*(row[0] for row in rows)), hypot(*(row[1] for row in rows))


def ratio(difference: float, size: float) -> float:
    """Return ``difference / size``; 0 for no difference, infinite for size zero."""
    if difference == 0:
        return 0.0
    return difference / size if size else inf


def relative_l2(actual: Held, reference: Held) -> float:
    """Return the relative error in the Euclidean norm; see :class:`OutputError`."""
    return ratio(*parts(actual, reference))


def joint_error(pairs: Iterable[tuple[Held, Held]]) -> float:
    """Return the relative error of several arrays as if they were one vector.

    Args:
        pairs: Each array with its reference.
    """
    norms = [parts(actual, reference) for actual, reference in pairs]
    difference = hypot(*(found for found, _ in norms))
    return ratio(difference, hypot(*(size for _, size in norms)))


def lost_elements(actual: Array, reference: Array) -> int:
    """Return the number of elements that are finite in the reference alone."""
    return int(np.count_nonzero(np.isfinite(reference) & ~np.isfinite(actual)))


def cosine(actual: Array, reference: Array) -> float:
    """Return the cosine of the angle between two arrays; NaN if one is zero."""
    sizes = norm(actual), norm(reference)
    if not all(sizes) or any(map(isinf, sizes)):
        return float("nan")
    product = (actual / sizes[0]) * (reference / sizes[1])
    return min(1.0, max(-1.0, float(np.sum(product))))


def decibels(error: float) -> float:
    """Return the signal to noise ratio of a relative error, in dB."""
    if error == 0:
        return inf
    return -inf if isinf(error) else -20 * log10(error)


def argmax_agreement(actual: Array, reference: Array) -> float | None:
    """Return the share of rows with the same place of the largest element."""
    rows = reference.ndim > 0 and reference.shape[-1] > 1
    if not rows or reference.size == 0:
        return None
    same = np.argmax(actual, axis=-1) == np.argmax(reference, axis=-1)
    return float(np.mean(np.asarray(same, dtype=np.float64)))


def errors(name: str, dtype: str, actual: Array, reference: Array) -> OutputError:
    """Return every error of an output against its reference.

    Args:
        name: Its path in the output's structure.
        dtype: Dtype in which the converted model returns it.
        actual: f64[*shape].
        reference: f64[*shape].
    """
    known = np.isfinite(reference)
    found, wanted = actual[known], reference[known]
    fresh = int(np.count_nonzero(~np.isfinite(found)))
    relative = relative_l2(actual, reference)
    largest, floored = (inf, inf) if fresh else _largest(found, wanted)
    return OutputError(
        name,
        dtype,
        reference.shape,
        relative_l2=relative,
        max_abs=largest,
        max_rel=floored,
        sqnr_db=decibels(relative),
        cosine=float("nan") if fresh else cosine(found, wanted),
        argmax_agreement=argmax_agreement(actual, reference),
        nonfinite_reference=int(reference.size - np.count_nonzero(known)),
        nonfinite=int(actual.size - np.count_nonzero(np.isfinite(actual))),
        nonfinite_new=fresh,
    )


def _largest(actual: Array, reference: Array) -> tuple[float, float]:
    """Return the largest absolute and the largest floored relative difference."""
    if not reference.size:
        return 0.0, 0.0
    difference = np.abs(actual - reference)
    floor = norm(reference) / float(np.sqrt(reference.size))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = difference / np.maximum(np.abs(reference), floor)
    relative[difference == 0] = 0
    return float(difference.max()), float(relative.max())
