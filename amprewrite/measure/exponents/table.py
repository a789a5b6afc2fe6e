"""A histogram of exponents as rich tables: totals, then every tensor."""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from amprewrite.dtypes import short_name
from amprewrite.measure.exponents.text import SHOWN, range_text, summary_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amprewrite.measure.exponents.histogram import ExponentHistogram
    from amprewrite.measure.exponents.rows import Exponents


def exponent_tables(histogram: "ExponentHistogram") -> Group:
    """Return the totals by kind, every tensor, and the loss scale."""
    totals = [row for row in histogram.totals.values() if row.size]
    parts = [_table(f"{row.kind}s", histogram.of(row.kind)) for row in totals]
    last = [line for line in summary_lines(histogram) if line.startswith("loss scale")]
    return Group(_table("all tensors of a kind", totals), *parts, *map(Text, last))


def _table(title: str, rows: "Sequence[Exponents]") -> Table:
    """Return a row for each tensor: its range, and the shares that formats lose."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("tensor", overflow="fold")
    table.add_column("where", overflow="fold")
    heads = ("numbers", "zero", "not finite", "range")
    for head in (*heads, *(f"{short_name(name)} lost / sub / over" for name in SHOWN)):
        table.add_column(head, justify="right")
    for row in rows:
        shares = [row.share_below(name) for name in SHOWN]
        cells = (
            row.name,
            row.path,
            f"{row.size:,}",
            f"{row.zeros / max(row.size, 1):.1%}",
            f"{row.nonfinite:,}",
            range_text(row.counts),
            *(f"{s.zero:.1%} / {s.subnormal:.1%} / {s.overflow:.1%}" for s in shares),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table
