"""A plan summed up by module, with the equal layers of a stack in one row."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.dtypes import short_name
from amprewrite.plan import Plan

ROOT = "(root)"
"""Name of the model itself in the table; its module path is empty."""

HEADS = ("other", "casts", "folded", "weights", "cast bytes")
"""Column heads after those of op counts; an empty column is not shown."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass
class Row:
    """Sums over the modules that share a row.

    Attributes:
        paths: Their paths.
        ops: Number of ops that compute in each dtype.
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


def row_names(plan: Plan) -> dict[str, str]:
    """Return the row of each module path, in program order.

    Numbers in a path become ``*``, so that the layers of a stack share their rows:
    ``layer.3.norm`` is in ``layer.*.norm``. Modules that end in a number share a row
    only if all of them run the same ops, as layers do and the parts of an
    ``nn.Sequential`` do not.
    """
    ops: dict[str, list[str]] = {}
    for decision in plan.decisions:
        ops.setdefault(decision.path, []).append(decision.canonical)
    for cast in plan.casts:
        ops.setdefault(cast.path, [])
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path, names in ops.items():
        kinds[_NUMBER.sub("*", path)].add(tuple(names))

    def row(path: str) -> str:
        starred = _NUMBER.sub("*", path)
        if not starred.endswith("*") or len(kinds[starred]) == 1:
            return starred
        front, dot, number = path.rpartition(".")
        return _NUMBER.sub("*", front) + dot + number

    return {path: row(path) for path in ops}


def module_rows(plan: Plan) -> dict[str, Row]:
    """Return the rows by name, in program order; see :func:`row_names`."""
    names = row_names(plan)
    rows: dict[str, Row] = {}

    def row_of(path: str) -> Row:
        row = rows.setdefault(names[path], Row())
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
    dtypes = [dtype for dtype in (plan.low, plan.full) if dtype]
    heads = [*(f"{short_name(dtype)} ops" for dtype in dtypes), *HEADS]
    cells = {path: _counts(row, dtypes) for path, row in rows.items()}
    totals = [sum(column) for column in zip(*cells.values(), strict=True)]
    used = [index for index, total in enumerate(totals) if total]
    table = Table(title="casts by module", title_justify="left")
    table.box, table.collapse_padding, table.pad_edge = box.SIMPLE_HEAD, True, False
    table.add_column("module", overflow="fold")
    stacked = any(len(row.paths) > 1 for row in rows.values())
    if stacked:
        table.add_column("modules", justify="right")
    for index in used:
        table.add_column(heads[index], justify="right")
    for path, row in rows.items():
        shown = [f"{n:,}" if (n := cells[path][index]) else "" for index in used]
        table.add_row(Text(path or ROOT), *[str(len(row.paths))] * stacked, *shown)
    table.add_section()
    table.add_row("all", *[""] * stacked, *(f"{totals[index]:,}" for index in used))
    return table


def _counts(row: Row, dtypes: list[str]) -> list[int]:
    counts = [row.ops[dtype] for dtype in dtypes]
    other = row.ops.total() - sum(counts)
    return [*counts, other, row.casts, row.folded, row.weights, row.cast_bytes]
