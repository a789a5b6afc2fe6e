"""The demo's figures as tables and sentences for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from amprewrite.demo.measure import Neighbours, Swap, Timing
from amprewrite.demo.run import AUTOCAST, FULL, OURS, SENTENCES, Figures
from amprewrite.report.modules import modules_table

BUSY = 1.5
"""Load per core above which times are unreliable; the demo itself makes about 1."""

SHOWN_SWAPS = 3
"""Number of swapped neighbours that are listed."""


def show(figures: Figures) -> Iterator[RenderableType]:
    """Yield the tables and sentences of the demo, in reading order."""
    yield Text(f"all-MiniLM-L6-v2 on a {figures.machine}")
    yield ""
    yield Text(figures.plan.summary())
    yield modules_table(figures.plan)
    yield Text(figures.report.summary())
    yield ""
    yield errors_table(figures)
    yield neighbours_text(figures.neighbours[OURS])
    yield ""
    for found in figures.timings:
        yield times_table(found)
    if figures.load is not None and figures.load > BUSY:
        yield Text(
            f"The machine was busy (load {figures.load:.1f} for each core): "
            f"do not rely on these times."
        )


def errors_table(figures: Figures) -> Table:
    """Return errors, nearest neighbours and parameter bytes, a row for each variant."""
    title = f"the vectors of {len(SENTENCES)} sentences, compared with float64"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("variant")
    heads = ("output", "median error", "worst error", "least cosine")
    for head in (*heads, "same nearest", "swapped pairs", "parameters"):
        table.add_column(head, justify="right")
    for name, found in figures.errors.items():
        order = figures.neighbours[name]
        table.add_row(
            Text(name),
            found.dtype,
            f"{found.median:.1e}",
            f"{found.worst:.1e}",
            f"{found.cosine:.7f}",
            f"{order.same_nearest} of {order.sentences}",
            f"{len(order.swaps)} of {order.pairs:,}",
            f"{figures.parameter_bytes[name] / 1e6:.1f} MB",
            style="bold" if name == OURS else None,
        )
    return table


def neighbours_text(found: Neighbours) -> Text:
    """Return a sentence on the number of changed orders and the worst of them."""
    head = (
        f"{OURS}: the nearest neighbour of {found.same_nearest} of {found.sentences} "
        f"sentences is the same as in float64.\n"
    )
    if not found.swaps:
        return Text(f"{head}Nothing in the whole order of neighbours changed.")
    lines = (_swap_line(swap) for swap in found.swaps[:SHOWN_SWAPS])
    return Text(
        f"{head}In the whole order {len(found.swaps)} of {found.pairs:,} pairs changed "
        f"places; those farthest apart in float64:\n" + "\n".join(lines)
    )


def _swap_line(swap: Swap) -> str:
    return (
        f"  from {SENTENCES[swap.sentence]!r}: {SENTENCES[swap.farther]!r} now comes "
        f"before {SENTENCES[swap.nearer]!r}; cosines {swap.margin:.1e} apart"
    )


def times_table(found: Timing) -> Table:
    """Return the times of the variants on one input."""
    rounds = len(found.seconds[OURS])
    size = f"{found.batch} x {found.tokens} tokens"
    title = f"{size}: times and speed, medians of {rounds} rounds in turns"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("variant")
    for head in ("time", f"to {FULL}", f"to {AUTOCAST}"):
        table.add_column(head, justify="right")
    for name in found.seconds:
        table.add_row(
            Text(name),
            f"{found.milliseconds(name):.2f} ms",
            f"{found.speedup(name, FULL):.2f}x",
            f"{found.speedup(name, AUTOCAST):.2f}x",
            style="bold" if name == OURS else None,
        )
    return table
