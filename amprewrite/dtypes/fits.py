"""Range and spacing of formats: ulp, saturation, surviving numbers, lossless casts."""

import math
from collections.abc import Iterable

from amprewrite.dtypes.formats import format_of

FEW = 64
"""Number of elements of a constant that are looked at one by one.

Of a table with more, only the least and the greatest count, and only if no number of a
narrow format is near them.
"""

KIND_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
"""Order of the kinds; a kind can represent those of its rank and below."""


def ulp(name: str, x: float) -> float:
    """Return the distance from ``abs(x)`` to the next larger value of the format.

    Subnormals have one spacing; beyond the range the spacing is that of the largest
    value; NaN and infinity give NaN. 1 for integers.

    Source: Goldberg 1991, section 1.2; ``numpy.spacing`` gives the same.
    """
    target = format_of(name)
    if not math.isfinite(x):
        return math.nan
    if target.kind not in ("float", "complex"):
        return 1.0
    inside = min(max(abs(x), target.smallest_normal), target.max)
    _, exponent = math.frexp(inside)  # inside = m * 2**exponent, 0.5 <= m < 1
    return math.ldexp(1.0, exponent - target.precision)


def saturate(name: str, value: float) -> float:
    """Return ``value`` clamped to the finite range; infinities and NaN stay."""
    if not math.isfinite(value):
        return value
    target = format_of(name)
    return min(max(value, target.min), target.max)


def survives(name: str, value: float) -> bool:
    """Return whether ``value`` cast to the format is still nearly that number.

    A finite number must lie in the finite range and, unless it is zero, not below the
    smallest normal value, where leading bits are lost: 1e-8 and 1e9 do not survive
    float16. Infinity survives where the format has it, NaN where it has that.
    """
    target = format_of(name)
    if math.isnan(value):
        return target.has_nan
    if math.isinf(value):
        return target.has_infinities
    is_small = value != 0 and abs(value) < target.smallest_normal
    return target.min <= value <= target.max and not is_small


def becomes(name: str, value: float) -> float | None:
    """Return 0, 1, -1 or an infinity if another number, ``value``, rounds to it.

    A number below the smallest normal one counts as 0: leading bits are lost, and some
    processors flush it. 1e-8 becomes 0 in float16 and 1e9 infinity; 0.999 becomes 1 in
    bfloat16, where 0.99 stays below it. None for every other number.
    """
    target, size = format_of(name), abs(value)
    if value == 0 or not math.isfinite(value):
        return None
    if size > target.max:
        return math.copysign(math.inf, value)
    if size < target.smallest_normal:
        return math.copysign(0.0, value)
    above = ulp(name, 1.0) / 2
    near = size != 1 and -above / 2 <= size - 1 <= above
    return math.copysign(1.0, value) if near else None


def edges(values: Iterable[float], *, table: bool = False) -> tuple[float, ...]:
    """Return the numbers that :func:`becomes` changes in bfloat16 or float16.

    Args:
        values: Numbers of a constant.
        table: Whether there are others: then 0 and 1 are numbers as any.
    """
    new = {x: [becomes(name, x) for name in ("bfloat16", "float16")] for x in values}
    lost = [x for x, pair in new.items() if any(to is not None for to in pair)]
    far = [x for x, pair in new.items() if any(map(math.isinf, filter(None, pair)))]
    return tuple(sorted(far if table else lost))


def same_kind(a: str, b: str) -> bool:
    """Return whether a cast of ``a`` to ``b`` loses precision and range at most.

    It neither drops a fraction nor an imaginary part; ``numpy.can_cast`` has the same
    for its ``casting="same_kind"``, but for signed to unsigned, which it refuses.
    """
    return KIND_RANK[format_of(a).kind] <= KIND_RANK[format_of(b).kind]


def is_lossless(a: str, b: str) -> bool:
    """Return whether every finite value of ``a``, cast to ``b``, stays the same.

    The sign of zero counts: float8_e5m2 does not fit into float8_e5m2fnuz, though
    every nonzero value does.
    """
    source, target = format_of(a), format_of(b)
    return (
        KIND_RANK[source.kind] <= KIND_RANK[target.kind]
        and target.min <= source.min
        and source.max <= target.max
        and source.precision <= target.precision
        # Every value is a multiple of the smallest one, so this covers subnormals.
        and target.smallest_subnormal <= source.smallest_subnormal
        and (target.has_negative_zero or not source.has_negative_zero)
    )
