"""A plan as rich tables, for a terminal and for a notebook."""

import io
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from amprewrite.plan.lines import row_names

if TYPE_CHECKING:
    from amprewrite.plan.model import Plan

WIDTH = 120
"""Width of the HTML form, in columns."""


def _module_rows(plan: "Plan") -> dict[str, list[int]]:
    """Return the counts of each row; equal modules of a stack share one."""
    names = row_names(plan)
    shared = Counter(names.values())
    names = {path: row if shared[row] > 1 else path for path, row in names.items()}
    rows: dict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for decision in plan.decisions:
        row = rows[names[decision.path]]
        row[0] += 1
        row[1] += bool(plan.low) and decision.precision == plan.low
    for cast in plan.casts:
        row = rows[names[cast.path]]
        row[2] += not cast.folded and not cast.is_weight
        row[3] += cast.folded and not cast.is_weight
        row[4] += cast.is_weight
        row[5] += cast.bytes
    return rows


def casts_by_module(plan: "Plan") -> Table:
    """Return one row for each module: ops, lowered ops, casts, bytes.

    Equal modules of a stack share a row, so that the table stays short.
    """
    table = Table(title="casts by module", title_justify="left")
    table.add_column("module", overflow="fold")
    heads = ("ops", "low", "casts", "folded", "weights", "bytes cast")
    for head in heads:
        table.add_column(head, justify="right")
    rows = _module_rows(plan)
    for path, row in rows.items():
        table.add_row(Text(path or "(root)"), *(f"{n:,}" for n in row))
    table.add_section()
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    table.add_row("all", *(f"{n:,}" for n in totals))
    return table


def decision_table(plan: "Plan") -> Table:
    """Return one row for each op: class, precision, rule, reason, place."""
    table = Table(title="decisions", title_justify="left")
    for head in ("op", "canonical", "class", "computes", "why", "source"):
        table.add_column(head, overflow="fold")
    for d in plan.decisions:
        cells = (d.op, d.canonical, d.op_class, d.precision, d.why, d.source)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def plan_table(plan: "Plan") -> Group:
    """Return the summary and the casts by module."""
    return Group(Text(plan.summary()), casts_by_module(plan))


def plan_html(plan: "Plan") -> str:
    """Return :func:`plan_table` as an HTML fragment."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(plan_table(plan))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
