"""A histogram of exponents as a few lines of text."""

from collections.abc import Iterator, Mapping
from math import frexp
from typing import TYPE_CHECKING

from amprewrite.dtypes import short_name

if TYPE_CHECKING:
    from amprewrite.measure.exponents.histogram import ExponentHistogram

SHOWN = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Formats that are shown: those of 16 bits, and the two of 8 bits that devices have."""


def summary_lines(histogram: "ExponentHistogram") -> Iterator[str]:
    """Yield a line for each kind and format, then the loss scale of float16."""
    totals = histogram.totals
    shares = {name: histogram.share_below(name) for name in SHOWN}
    has_gradients = False
    for kind, total in totals.items():
        if not total.size:
            continue
        has_gradients |= "gradient" in kind and total.bound > 0
        yield (
            f"{kind}s: {total.size:,} numbers in {len(histogram.of(kind))} tensors, "
            f"{total.zeros / total.size:.1%} zero, {total.nonfinite:,} not finite, "
            f"{range_text(total.counts)}"
        )
        for name in SHOWN:
            found = shares[name][kind]
            yield (
                f"  {short_name(name):8} {found.zero:6.1%} to zero, "
                f"{found.subnormal:6.1%} subnormal, {found.overflow:6.1%} overflow"
            )
    if has_gradients:
        scale = histogram.loss_scale()
        left = histogram.share_below("float16", scale)["activation gradient"]
        yield (
            f"loss scale for float16: {power_text(scale)}; then {left.zero:.1%} of the "
            f"gradients of activations become zero"
        )


def range_text(counts: Mapping[int, int]) -> str:
    """Return the range of the numbers, as powers of two."""
    if not counts:
        return "none other than zero"
    return f"2^{min(counts)} to 2^{max(counts) + 1}"


def power_text(scale: float) -> str:
    """Return a power of two as ``2^12``."""
    return f"2^{frexp(scale)[1] - 1}"
