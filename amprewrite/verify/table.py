"""A report as rich tables, for a terminal and for a notebook."""

import io
from math import inf
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from amprewrite.verify.rows import OpError
from amprewrite.verify.text import number, summary_lines

if TYPE_CHECKING:
    from amprewrite.verify.report import Report

WIDTH = 120
"""Width of the HTML form, in columns."""

ROWS = 10
"""Number of ops and gradients that are shown."""

FLUSHED = 0.01
"""Share of elements that underflow, above which an op is shown with its range."""


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for head in words:
        table.add_column(head, overflow="fold")
    for head in numbers:
        table.add_column(head, justify="right")
    return table


def outputs_table(report: "Report") -> Table:
    """Return one row for each float output, and for each of the jitted function."""
    heads = ("rel. L2", "max abs", "max rel", "dB", "cosine", "argmax", "non-finite")
    table = _table("outputs", ("output", "dtype"), heads)
    rows = [(output.name, output) for output in report.outputs]
    rows += [(f"{output.name}, jitted", output) for output in report.jitted]
    for name, output in rows:
        row = (
            output.relative_l2,
            output.max_abs,
            output.max_rel,
            output.sqnr_db,
            output.cosine,
            output.argmax_agreement,
        )
        lost = f"{output.nonfinite}/{output.nonfinite_reference}"
        table.add_row(Text(name), output.dtype, *map(number, row), lost)
    return table


def discrete_table(report: "Report") -> Table:
    """Return one row for each output of integers or booleans."""
    heads = ("elements", "differ", "in the original")
    table = _table("outputs of integers", ("output", "dtype"), heads)
    for row in report.discrete:
        differing = max(row.differing, row.jitted)
        cells = (row.size, differing, row.original)
        table.add_row(Text(row.name), row.dtype, *map(str, cells))
    return table


def worst_table(report: "Report", count: int = ROWS) -> Table:
    """Return one row for each of the ops that matter most; see ``Report.worst``."""
    words = ("op", "native", "computes", "module", "source")
    known = any(op.share is not None for op in report.ops)
    title = "costliest ops" if known else "largest own errors"
    heads = (*(["share"] if known else []), "own", "accumulated", "jump")
    table = _table(title, words, heads)
    for op in report.worst(count):
        cells = (op.op, op.native, op.precision, op.path, op.source)
        share = [""] if op.share is None else [f"{op.share:.1%}"]
        errors = (number(op.own), number(op.accumulated), number(op.jump))
        table.add_row(*map(Text, cells), *(share if known else []), *errors)
    return table


def ranges_table(report: "Report", count: int = ROWS) -> Table:
    """Return one row for each op or cast that leaves the range of its format.

    Those with the least headroom come first. A row needs less than an octave of it, or
    a share of :data:`FLUSHED` that underflows.
    """
    heads = ("largest", "headroom", "underflow", "non-finite")
    table = _table("nearest to the ends of their range", ("op", "format"), heads)
    for op in _out_of_range(report)[:count]:
        headroom = "" if op.headroom is None else f"{op.headroom:.1f} octaves"
        cells = (number(op.largest), headroom, f"{op.underflow:.1%}", str(op.nonfinite))
        table.add_row(Text(op.op), op.dtype, *cells)
    return table


def _out_of_range(report: "Report") -> list[OpError]:
    def headroom(op: OpError) -> float:
        return inf if op.headroom is None else op.headroom

    found = (op for op in report.ops if headroom(op) < 1 or op.underflow > FLUSHED)
    return sorted(found, key=lambda op: (headroom(op), -op.underflow))


def gradients_table(report: "Report", count: int = ROWS) -> Table:
    """Return one row for each of the tensors with the largest gradient errors.

    Those that are zero but for rounding come last: their errors are of another kind.
    """
    heads = ("rel. L2", "original", "cosine")
    table = _table("largest gradient errors", ("gradient of",), heads)
    rows = sorted(report.gradients, key=lambda row: (row.zero, -row.relative_l2))
    for row in rows[:count]:
        name = f"input {row.name}" if row.is_input else row.name
        name = f"{name} (zero, by size)" if row.zero else name
        cells = (row.relative_l2, row.original, row.cosine)
        table.add_row(Text(name), *map(number, cells))
    return table


def report_tables(report: "Report") -> Group:
    """Return the summary, the outputs, the worst ops and gradients."""
    parts = [Text("\n".join(summary_lines(report))), outputs_table(report)]
    parts += [discrete_table(report)] if report.discrete else []
    parts += [worst_table(report)] if report.ops else []
    parts += [ranges_table(report)] if _out_of_range(report) else []
    parts += [gradients_table(report)] if report.gradients else []
    return Group(*parts)


def report_html(report: "Report") -> str:
    """Return :func:`report_tables` as an HTML fragment."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(report_tables(report))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
