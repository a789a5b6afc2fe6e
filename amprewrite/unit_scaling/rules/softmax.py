"""Rules of softmax, attention and cross entropy.

All three are exact for independent Gaussian logits, at every size and temperature;
the curves that u-muP fits are off by 18 % for 1024 logits at mult=1.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.moments import softmax_moments
from amprewrite.unit_scaling.rules.model import Factors

HIDDEN = 1e3
"""Distance of masked logits from the largest one of their row, at least.

Masks add -1e4 (for float16), -1e9, the least finite number or minus infinity."""
EXACT_ROWS = 64
"""Rows of a causal softmax that are each computed; longer ones are interpolated."""
GROWTH = 1.09
"""From one interpolated row to the next."""


def softmax(*, size: int, mult: float = 1.0) -> Factors:
    """Bring a softmax over ``size`` numbers to root mean square 1.

    The output is positive: its mean counts, as in what it multiplies.

    Raises:
        UnitScalingError: A softmax of one number is 1, and has no gradient.
    """
    if size == 1:
        msg = "softmax over size=1 is 1 and has no gradient; want two or more"
        raise UnitScalingError(msg)
    found = softmax_moments(size, mult)
    forward, backward = found.square**-0.5, found.slope**-0.5 / mult
    return Factors(forward, {"input": backward}, ("input",))


def visible_logits(logits: NDArray[Any], axis: int) -> dict[int, int]:
    """Return how many rows have how many logits that a mask does not hide.

    Args:
        logits: Logits as a softmax gets them, of any shape.
        axis: Dimension of the softmax.

    Returns:
        Number of rows by the number of logits that are at most :data:`HIDDEN` below the
        largest one of their row. A row that is hidden as a whole sees all, as softmax
        does.
    """
    wide = logits.astype(np.float64)
    high = wide.max(axis, keepdims=True)
    seen = np.where(np.isfinite(high), wide > high - HIDDEN, True).sum(axis)
    sizes, rows = np.unique(seen, return_counts=True)
    return {int(n): int(count) for n, count in zip(sizes, rows, strict=True)}


def masked_softmax(visible: Mapping[int, int], size: int) -> Factors:
    """Return the factors of a softmax with a mask: rms 1 over all rows and columns.

    Args:
        visible: Number of rows by the number of logits that they see.
        size: Extent of a row.

    Raises:
        UnitScalingError: No row sees more than one logit: there is no gradient.
    """
    rows = sum(visible.values())
    found = {n: softmax_moments(n, 1.0) for n in visible if n > 1}
    square = sum(
        count * (n * found[n].square if n in found else n)
        for n, count in visible.items()
    )
    slope = sum(visible[n] * n * moments.slope for n, moments in found.items())
    if not slope:
        msg = "softmax with a mask that leaves one number of each row has no gradient"
        raise UnitScalingError(msg)
    entries = rows * size
    backward = {"input": (entries / slope) ** 0.5}
    return Factors((entries / square) ** 0.5, backward, ("input",))


@functools.lru_cache(maxsize=1024)
def _row_sums(
    queries: int, keys: int, spread: float, *, causal: bool
) -> tuple[float, float]:
    """Return the sums over rows of n E[p^2] and of n E[slope], n the keys of a row."""
    if not causal:
        found = softmax_moments(keys, spread)
        return queries * keys * found.square, queries * keys * found.slope
    rows = np.minimum(np.arange(1, queries + 1), keys)
    knots = [n for n in range(1, rows[-1] + 1) if n <= EXACT_ROWS]
    while knots[-1] < rows[-1]:
        knots.append(min(int(knots[-1] * GROWTH), int(rows[-1])))
    known = [softmax_moments(n, spread) for n in knots]
    # n times the moments is close to a power of n: its logarithm is nearly linear.
    squares = [math.log(n * x.square) for n, x in zip(knots, known, strict=True)]
    slopes = [math.log(n * x.slope) for n, x in zip(knots[1:], known[1:], strict=True)]
    row, knot = np.log(rows), np.log(knots)
    square = np.exp(np.interp(row, knot, squares)).sum()
    if not slopes:
        return float(square), 0.0
    slope = np.exp(np.interp(row[rows > 1], knot[1:], slopes)).sum()
    return float(square), float(slope)


def attention(  # noqa: PLR0913  # one keyword for each extent
    *,
    queries: int,
    keys: int,
    head: int,
    value_head: int | None = None,
    causal: bool = False,
    p: float = 0.0,
    mult: float = 1.0,
) -> Factors:
    """Bring softmax(mult/head * q k^T) v to root mean square 1, and each gradient.

    Logits are close to Gaussian, of standard deviation mult/sqrt(head), as 1/head (and
    not its root) multiplies the products. A row of n keys has mean square n E[p^2];
    gradients of the logits have E[slope] times the width of the values, and reach the
    query as a sum over keys, the key as a sum over queries.

    Args:
        queries: Rows of the scores.
        keys: Columns of the scores.
        head: Width of a query and a key.
        value_head: Width of a value; that of a key if None.
        causal: Whether row i sees the first i + 1 keys only.
        p: Probability of dropout.
        mult: The multiplier.
    """
    width = value_head or head
    square, slope = _row_sums(queries, keys, mult / head**0.5, causal=causal)
    if not slope:
        msg = f"attention over keys={keys} has no gradient; want two keys or more"
        raise UnitScalingError(msg)
    keep = (1 - p) ** 0.5
    logits = (width * slope) ** 0.5 * mult / head
    backward = {
        "query": keep * queries**0.5 / logits,
        "key": keep * keys**0.5 / logits,
        "value": keep * (keys / square) ** 0.5,
    }
    return Factors(
        keep * (queries / square) ** 0.5, backward, ("query", "key", "value")
    )


def cross_entropy(*, classes: int, batch: float, mult: float = 1.0) -> Factors:
    """Give the gradient of the mean loss root mean square 1; the loss stays the mean.

    It is (softmax(mult * x) - onehot) mult / batch, and for targets that do not depend
    on x, the mean square of a row of it is 1 - 2/V + V E[p^2] over V classes.

    Raises:
        UnitScalingError: One class is certain: there is no gradient.
    """
    if classes == 1:
        msg = "cross_entropy over classes=1 is 0 everywhere; want two classes or more"
        raise UnitScalingError(msg)
    square = softmax_moments(classes, mult).square
    row = (1 - 2 / classes + classes * square) / classes
    return Factors(1.0, {"input": batch * row**-0.5 / mult}, ())
