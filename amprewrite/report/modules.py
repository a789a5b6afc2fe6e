"""A plan summed up by module, with the repeated blocks of a stack in one row."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from amprewrite.dtypes import short_name
from amprewrite.plan import Plan
from amprewrite.plan.lines import layer_rows, row_names

# Module paths in a table: broken over lines at their dots.

INDENT = "  "
"""Beginning of the lines after the first."""


@dataclass(frozen=True)
class DottedName:
    """Module path that fits into any column at least as wide as its longest part.

    Attributes:
        name: The path, such as ``encoder.layer.*.attention``.
        suffix: Text after it, such as the number of modules; on its last line.
    """

    name: str
    suffix: str = ""

    def lines(self, width: int) -> list[str]:
        """Return the path as lines of at most ``width`` characters.

        A part that is longer than that is a line of its own.
        """
        *parts, last = self.name.split(".")
        lines = [""]
        for part in (*(f"{part}." for part in parts), last + self.suffix):
            if lines[-1].strip() and len(lines[-1] + part) > width:
                lines.append(INDENT)
            lines[-1] += part
        return lines

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        full = self.name + self.suffix
        least = max(len(line) for line in self.lines(len(INDENT)))
        return Measurement(least, len(full)).with_maximum(options.max_width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        for line in self.lines(options.max_width):
            yield Text(line, overflow="fold")


ROOT = "(root)"
"""Name of the model itself in the table; its module path is empty."""

HEADS = ("other", "casts", "folded", "weights", "bytes")
"""Column heads after those of op counts; an empty column is not shown."""

UNITS = ("", "k", "M", "G", "T")
"""Prefixes of bytes, each a thousand times the one before."""


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


def module_rows(plan: Plan, *, by_layer: bool = False) -> dict[str, Row]:
    """Return the rows by name, in program order.

    Args:
        plan: The plan.
        by_layer: Whether whole blocks share a row, see
            :func:`amprewrite.plan.lines.layer_rows`; otherwise only equal
            modules in them do, see ``row_names`` there.
    """
    each = {path: (name, path) for path, name in row_names(plan).items()}
    names = layer_rows(plan) if by_layer else each
    rows: dict[str, Row] = {}

    def row_of(path: str) -> Row:
        name, counted = names[path]
        row = rows.setdefault(name, Row())
        row.paths.add(counted)
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


def modules_table(plan: Plan, *, by_layer: bool = False) -> Table:
    """Return a table of modules with their ops by dtype and their casts.

    It fits into 80 columns: long paths are broken at their dots, and bytes have units.

    Args:
        plan: The plan.
        by_layer: Whether the repeated blocks of a stack share one row; otherwise equal
            modules of such blocks do.
    """
    rows = module_rows(plan, by_layer=by_layer)
    dtypes = [dtype for dtype in (plan.low, plan.full) if dtype]
    heads = [*(f"{short_name(dtype)} ops" for dtype in dtypes), *HEADS]
    cells = {path: _counts(row, dtypes) for path, row in rows.items()}
    totals = [sum(column) for column in zip(*cells.values(), strict=True)]
    used = [index for index, total in enumerate(totals) if total]
    table = Table(title="casts by module", title_justify="left")
    table.box, table.collapse_padding, table.pad_edge = box.SIMPLE_HEAD, True, False
    table.add_column("module")
    for index in used:
        table.add_column(heads[index], justify="right")

    def shown(counts: list[int]) -> list[str]:
        texts = [*(f"{n:,}" if n else "" for n in counts[:-1]), _bytes(counts[-1])]
        return [texts[index] for index in used]

    for path, row in rows.items():
        many = len(row.paths)
        suffix = f" x{many}" if many > 1 else ""
        table.add_row(DottedName(path or ROOT, suffix), *shown(cells[path]))
    table.add_section()
    table.add_row("all", *(shown(totals) if totals else ()))
    return table


def _bytes(count: int) -> str:
    """Return a number of bytes with three digits or more and a unit; empty for none."""
    power, scaled = 0, float(count)
    while round(scaled) >= 1000 and power + 1 < len(UNITS):  # noqa: PLR2004  # 1 kB
        power, scaled = power + 1, scaled / 1000
    digits = 0 if not power or scaled >= 100 else 1  # noqa: PLR2004  # 3 digits
    return f"{scaled:.{digits}f} {UNITS[power]}B" if count else ""


def _counts(row: Row, dtypes: list[str]) -> list[int]:
    counts = [row.ops[dtype] for dtype in dtypes]
    other = row.ops.total() - sum(counts)
    return [*counts, other, row.casts, row.folded, row.weights, row.cast_bytes]
