"""A report as rich tables, for a terminal and for a notebook."""

import io
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from amprewrite.verify.text import number, summary_lines

if TYPE_CHECKING:
    from amprewrite.verify.report import Report

WIDTH = 120
"""Columns of the HTML form."""

ROWS = 10
"""Ops and gradients that are shown."""


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


def worst_table(report: "Report", count: int = ROWS) -> Table:
    """Return one row for each of the ops with the largest own errors."""
    words = ("op", "native", "computes", "module", "source")
    table = _table("largest own errors", words, ("own", "accumulated"))
    for op in report.worst(count):
        cells = (op.op, op.native, op.precision, op.path, op.source)
        table.add_row(*map(Text, cells), number(op.own), number(op.accumulated))
    return table


def gradients_table(report: "Report", count: int = ROWS) -> Table:
    """Return one row for each of the parameters with the largest gradient errors."""
    table = _table("largest gradient errors", ("parameter",), ("rel. L2", "cosine"))
    rows = sorted(report.gradients, key=lambda found: -found.relative_l2)
    for row in rows[:count]:
        table.add_row(Text(row.name), number(row.relative_l2), number(row.cosine))
    return table


def report_tables(report: "Report") -> Group:
    """Return the summary, the outputs, the worst ops and gradients."""
    parts = [Text("\n".join(summary_lines(report))), outputs_table(report)]
    parts += [worst_table(report)] if report.ops else []
    parts += [gradients_table(report)] if report.gradients else []
    return Group(*parts)


def report_html(report: "Report") -> str:
    """Return :func:`report_tables` as an HTML fragment."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(report_tables(report))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
