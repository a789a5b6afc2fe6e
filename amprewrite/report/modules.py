"""A plan by module, with the layers of a stack in one row."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from amprewrite.plan import Plan

ROOT = "(root)"
"""Stands for the model itself, whose module path is empty."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass
class Row:
    """The modules whose paths differ only in numbers, added up.

    Attributes:
        paths: Their paths.
        ops: How many ops compute in each dtype.
        casts: Casts that run at run time.
        folded: Casts of activations that cost nothing at run time.
        weights: Casts of weights, done once at conversion when not training.
        cast_bytes: Bytes that the casts move at run time.
    """

    paths: set[str] = field(default_factory=set[str])
    ops: Counter[str] = field(default_factory=Counter[str])
    casts: int = 0
    folded: int = 0
    weights: int = 0
    cast_bytes: int = 0


def stack_path(path: str) -> str:
    """Return ``path`` with ``*`` for every number: ``layer.3.norm`` is ``layer.*.norm``."""
    return _NUMBER.sub("*", path)


def module_rows(plan: Plan) -> dict[str, Row]:
    """Return a row for each module path without its numbers, in program order."""
    rows: dict[str, Row] = {}

    def row_of(path: str) -> Row:
        row = rows.setdefault(stack_path(path), Row())
        row.paths.add(path)
        return row

    for decision in plan.decisions:
        row_of(decision.path).ops[decision.precision] += 1
    for cast in plan.casts:
        row = row_of(cast.path)
        row.weights += cast.is_weight
        row.folded += cast.folded and not cast.is_weight
        row.casts += not cast.folded and not cast.is_weight
        row.cast_bytes += cast.bytes
    return rows


def modules_table(plan: Plan) -> Table:
    """Return one row for each kind of module: its ops by dtype, its casts."""
    rows = module_rows(plan)
    dtypes = [d for d in (plan.low, plan.full) if d]
    table = Table(title="casts by module", title_justify="left")
    table.add_column("module", overflow="fold")
    table.add_column("times", justify="right")
    for head in (*(f"{d} ops" for d in dtypes), "other ops"):
        table.add_column(head, justify="right")
    for head in ("casts", "folded", "weights", "cast bytes"):
        table.add_column(head, justify="right")
    for path, row in rows.items():
        times = str(len(row.paths)) if len(row.paths) > 1 else ""
        table.add_row(Text(path or ROOT), times, *_cells(row, dtypes))
    table.add_section()
    table.add_row("all", "", *_cells(_total(rows.values()), dtypes))
    return table


def _cells(row: Row, dtypes: list[str]) -> Iterator[str]:
    counts = [row.ops[dtype] for dtype in dtypes]
    counts += [row.ops.total() - sum(counts)]
    counts += [row.casts, row.folded, row.weights, row.cast_bytes]
    yield from (f"{count:,}" if count else "" for count in counts)


def _total(rows: Iterable[Row]) -> Row:
    total = Row()
    for row in rows:
        total.ops += row.ops
        total.casts += row.casts
        total.folded += row.folded
        total.weights += row.weights
        total.cast_bytes += row.cast_bytes
    return total
