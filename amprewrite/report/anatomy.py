"""One number in several formats, as a table and as data."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.dtypes import short_name
from amprewrite.dtypes.anatomy import Anatomy

HEADS = ("format", "bits", "stored", "", "below", "above", "ulp", "error", "in ulp")
"""Column heads; the fourth has the kind of number, where it is not normal."""

BITS = 20
"""Width of the bits, in columns: those of 16-bit formats fit into a line."""

DIGITS = (6, 9)
"""Least and largest number of digits of a neighbour."""


def anatomy_table(rows: Sequence[Anatomy]) -> Table:
    """Return a row for each format: bits, stored number, neighbours, rounding error.

    Bits are sign, exponent and fraction. The ulp is the distance to the next larger
    number; the error is the stored number minus the given one, also in ulp.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in HEADS:
        if head == "bits":
            table.add_column(head, overflow="fold", min_width=BITS, max_width=BITS)
            continue
        left = head in (HEADS[0], "")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        exact = row.error == 0
        error = "" if row.error is None else f"{_as_float(row):+.3g}"
        units = in_ulp(row)
        cells = (
            short_name(row.format.name),
            " ".join(filter(None, (row.sign, row.exponent, row.fraction))),
            repr(row.value),
            "" if row.kind == "normal" else row.kind,
            *(f"{x:.{_digits(row)}g}" for x in (row.below, row.above)),
            _power(row),
            "exact" if exact else error,
            "" if exact or units is None else f"{units:+.3f}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _digits(row: Anatomy) -> int:
    """Return the number of digits that tell neighbours apart, if there is room."""
    least, most = DIGITS
    return min(max(2 + int(row.format.precision * math.log10(2)), least), most)


def _power(row: Anatomy) -> str:
    """Return the distance to the next larger number as a power of two."""
    if not math.isfinite(row.above):
        return ""
    return f"2^{math.frexp(row.above - row.value)[1] - 1}"


def anatomy_json(text: str, rows: Sequence[Anatomy]) -> dict[str, Any]:
    """Return the same as JSON data; numbers that are not finite are text."""
    return {
        "number": text,
        "formats": [
            {
                "format": row.format.name,
                "sign": row.sign,
                "exponent": row.exponent,
                "fraction": row.fraction,
                "value": _plain(row.value),
                "hex": row.value.hex() if math.isfinite(row.value) else str(row.value),
                "kind": row.kind,
                "below": _plain(row.below),
                "above": _plain(row.above),
                "error": None if row.error is None else _plain(_as_float(row)),
                "relative_error": row.relative_error,
                "error_in_ulp": in_ulp(row),
            }
            for row in rows
        ],
    }


def in_ulp(row: Anatomy) -> float | None:
    """Return the error in distances to the next larger number; None without one."""
    if row.error is None or not math.isfinite(row.above):
        return None
    return float(row.error / (Fraction(row.above) - Fraction(row.value)))


def _as_float(row: Anatomy) -> float:
    """Return the error as a float; beyond its range infinite."""
    assert row.error is not None
    try:
        return float(row.error)
    except OverflowError:
        return math.inf if row.error > 0 else -math.inf


def _plain(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)
