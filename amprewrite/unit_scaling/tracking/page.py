"""Scales of tensors as HTML: a table for a notebook, and a page of its own."""

import io
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec

from amprewrite.unit_scaling.tracking.plot import plot_rows
from amprewrite.unit_scaling.tracking.rows import ScaleRow
from amprewrite.unit_scaling.tracking.scales import Scale

HALF_RANGE = 16
"""Powers of two from 1 at which a deviation has the full colour."""

STYLE = """
.amprewrite-scales { border-collapse: collapse; font: 12px monospace; }
.amprewrite-scales th, .amprewrite-scales td { padding: 1px 6px; text-align: right; }
.amprewrite-scales .name { text-align: left; white-space: nowrap; }
.amprewrite-scales .first { border-left: 1px solid #888; }
"""

COLUMNS = ("std", "rms", "max", "zeros")


def html_table(heads: Sequence[str], rows: Sequence[ScaleRow]) -> str:
    """Return the table as an HTML fragment.

    The colour of a deviation says how far it is from 1: blue below, red above.
    """
    return f"<style>{STYLE}</style>\n{''.join(_table(heads, rows))}"


def page_of(heads: Sequence[str], rows: Sequence[ScaleRow]) -> str:
    """Return a page with the table, and the plot if matplotlib is installed."""
    plot = ""
    if find_spec("matplotlib") is not None:
        drawn = io.StringIO()
        plot_rows(heads, rows).savefig(drawn, format="svg")
        plot = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>Scales of tensors</title></head><body>\n"
        f"<h1>Scales of tensors</h1>\n{html_table(heads, rows)}\n{plot}</body></html>\n"
    )


def _table(heads: Sequence[str], rows: Sequence[ScaleRow]) -> Iterator[str]:
    groups = [f"{head}, {kind}" for kind in ("forward", "gradient") for head in heads]
    yield '<table class="amprewrite-scales">\n<tr><th class="name">tensor</th>'
    yield '<th class="name">where</th><th class="name">shape</th>'
    for group in groups:
        yield f'<th class="first" colspan="{len(COLUMNS)}">{escape(group)}</th>'
    yield '</tr>\n<tr><th class="name" colspan="3"></th>'
    for _ in groups:
        for number, column in enumerate(COLUMNS):
            yield f"<th{_first(number)}>{column}</th>"
    yield "</tr>\n"
    for row in rows:
        yield from _row(row)
    yield "</table>"


def _row(row: ScaleRow) -> Iterator[str]:
    yield "<tr>"
    shape = " x ".join(map(str, row.shape)) or "scalar"
    for text in (row.name, row.where, shape):
        yield f'<td class="name">{escape(text)}</td>'
    for scale in row.scales("forward") + row.scales("backward"):
        if scale is None:
            yield f'<td class="first" colspan="{len(COLUMNS)}"></td>'
            continue
        numbers = (scale.std, scale.rms, scale.largest)
        texts = [*(f"{number:.3g}" for number in numbers), f"{scale.zeros:.1%}"]
        for number, text in enumerate(texts):
            colour = "" if number else f' style="background: {colour_of(scale)}"'
            yield f"<td{_first(number)}{colour}>{text}</td>"
    yield "</tr>\n"


def _first(number: int) -> str:
    return "" if number else ' class="first"'


def colour_of(scale: Scale) -> str:
    """Return the colour of a deviation: white near 1, blue below, red above."""
    if not scale.std:
        return "#ddd"
    if not math.isfinite(scale.std):
        return "#f00"
    power = math.log2(scale.std)
    pale = 255 - round(200 * min(abs(power) / HALF_RANGE, 1.0))
    return f"rgb({pale},{pale},255)" if power < 0 else f"rgb(255,{pale},{pale})"
