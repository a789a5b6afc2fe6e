"""Scales of every tensor of a model, forward and backward."""

import io
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.unit_scaling.validity import load_for

# Scales of one tensor: plain data.


@dataclass(frozen=True)
class Scale:
    """Scales of one tensor, in float64.

    Attributes:
        std: Standard deviation of the finite elements: logits may be masked by -inf.
        rms: Root mean square of these; both are NaN where there are none.
        largest: Largest absolute value of all, infinite or NaN if one is.
        zeros: Share of elements that are zero.
    """

    std: float
    rms: float
    largest: float
    zeros: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Scale":
        """Return the scales of an array; of an empty one all are 0."""
        x = np.ravel(values).astype(np.float64)
        if not x.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        largest, zeros = float(np.abs(x).max()), float((x == 0).mean())
        finite = x[np.isfinite(x)]
        if not finite.size:
            return cls(float("nan"), float("nan"), largest, zeros)
        rms = float(np.sqrt(np.square(finite).mean()))
        return cls(float(finite.std()), rms, largest, zeros)

    def __str__(self) -> str:
        """Return the four numbers in columns."""
        return f"{self.std:9.3g} {self.rms:9.3g} {self.largest:9.3g} {self.zeros:6.1%}"


@dataclass(frozen=True)
class Tracked:
    """One tensor of a run.

    Attributes:
        name: Op that made it, numbered; or the name of a parameter.
        where: Path of the module in torch, source line in JAX; empty if unknown.
        shape: Its extents.
        forward: Scales of its values.
        backward: Scales of its gradient; None where there is none.
        parameter: Whether it is a parameter of the model.
        scaled: Name of the tensor that this one is but for a factor of unit scaling,
            empty where that one has no row; None of all other tensors.
    """

    name: str
    where: str
    shape: tuple[int, ...]
    forward: Scale
    backward: Scale | None
    parameter: bool = False
    scaled: str | None = None


def base_name(name: str) -> str:
    """Return a name without its number."""
    base, _, number = name.rpartition("_")
    return base if base and number.isdigit() else name


# Rows of a table of scales: one tensor, in one run or in several.

Kind = Literal["forward", "backward"]
"""Values, or their gradient."""


class Cell(NamedTuple):
    """Scales of one tensor in one run.

    Attributes:
        forward: Scales of its values.
        backward: Scales of its gradient; None where there is none.
    """

    forward: Scale
    backward: Scale | None


@dataclass(frozen=True)
class ScaleRow:
    """One tensor of the runs.

    Attributes:
        name: Its name in the first run that has it.
        where: Path of the module in torch, source line in JAX; empty if unknown.
        shape: Its extents.
        cells: Its scales in each run; None where the run has no such tensor.
    """

    name: str
    where: str
    shape: tuple[int, ...]
    cells: tuple[Cell | None, ...]

    @classmethod
    def of(cls, *runs: Tracked | None) -> "ScaleRow":
        """Return the row of a tensor, from each run; one of them is not None."""
        found = [run for run in runs if run is not None]
        where = next((run.where for run in found if run.where), "")
        cells = [
            None if run is None else Cell(run.forward, run.backward) for run in runs
        ]
        return cls(found[0].name, where, found[0].shape, tuple(cells))

    def scales(self, kind: Kind) -> tuple[Scale | None, ...]:
        """Return the scales of its values or of its gradient in each run."""
        return tuple(None if c is None else getattr(c, kind) for c in self.cells)


# Deviations of all tensors of one run or two, drawn by matplotlib.

SMALLEST = {"float8 e4m3": 2.0**-9, "float8 e5m2": 2.0**-16, "float16": 2.0**-24}
"""Smallest numbers above 0, below half of which a value becomes 0."""

STYLES = (":", "--", "-.")
"""Style of the line of each."""


def plot_rows(heads: Sequence[str], rows: Sequence[ScaleRow]) -> Any:
    """Return a figure: a row for each tensor, values on the left, gradients right.

    Tensors of deviation 0 have no point. Vertical lines are the smallest numbers of
    formats.

    Args:
        heads: Name of each run.
        rows: The tensors.

    Returns:
        A ``matplotlib.figure.Figure`` without a display; ``savefig`` writes it.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    size = (10, 1.5 + 0.2 * len(rows))
    figure = load_matplotlib().Figure(figsize=size, layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    kinds: tuple[Kind, Kind] = ("forward", "backward")
    for axes, kind in zip(panels, kinds, strict=True):
        for number, head in enumerate(heads):
            found = [row.scales(kind)[number] for row in rows]
            points = [(s.std, y) for y, s in enumerate(found) if s and s.std]
            axes.plot(
                [std for std, _ in points],
                [y for _, y in points],
                "ox"[number % 2],
                label=head,
                color=("tab:orange", "tab:blue")[number % 2],
            )
        axes.axvline(1.0, color="0.6", linewidth=1)
        for style, (name, smallest) in zip(
            (":", "--", "-."), SMALLEST.items(), strict=True
        ):
            axes.axvline(smallest, color="0.6", linestyle=style, label=f"least {name}")
        axes.set_xscale("log", base=2)
        axes.set_title("values" if kind == "forward" else "gradients")
        axes.set_xlabel("standard deviation")
    panels[0].set_yticks(range(len(rows)), [row.name for row in rows])
    panels[0].tick_params("y", labelsize=7)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    panels[0].legend(fontsize=7)
    return figure


# Scales of tensors as HTML: a table for a notebook, and a page of its own.

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


# Scales of the tensors of one run, or of two beside each other, as a table.


@dataclass(frozen=True)
class ScaleTable:
    """Scales of all tensors, forward and backward, in each run.

    Attributes:
        heads: Name of each run.
        rows: The tensors, parameters first, then in the order of the run.
    """

    heads: tuple[str, ...]
    rows: tuple[ScaleRow, ...]

    def __getitem__(self, name: str) -> ScaleRow:
        """Return the tensor of that name."""
        found = {row.name: row for row in self.rows}
        return found[name]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text: two for each tensor."""
        columns = f"{'std':>9} {'rms':>9} {'max':>9} {'zeros':>6}"
        wide = max((len(row.name) for row in self.rows), default=0)
        heads = " | ".join(f"{head:^{len(columns)}}" for head in self.heads)
        yield f"{'':{wide}}          {heads}"
        yield f"{'':{wide}}          {' | '.join([columns] * len(self.heads))}"
        for row in self.rows:
            lines: tuple[tuple[Kind, str, str], ...] = (
                ("forward", row.name, row.where),
                ("backward", "", ""),
            )
            for kind, name, where in lines:
                texts = [str(s or f"{'':{len(columns)}}") for s in row.scales(kind)]
                yield f"{name:{wide}} {kind:8} {' | '.join(texts)} {where}"

    def __str__(self) -> str:
        """Return the table as text."""
        return "\n".join(line.rstrip() for line in self.lines())

    def plot(self) -> Any:
        """Return a ``matplotlib.figure.Figure`` of the deviations of all tensors.

        Raises:
            UnsupportedError: matplotlib is not installed.
        """
        return plot_rows(self.heads, self.rows)

    def to_html(self, path: str | Path) -> None:
        """Write a page that needs no other file; with the plot if there is matplotlib.

        Args:
            path: File to write.
        """
        Path(path).write_text(page_of(self.heads, self.rows), encoding="utf-8")

    def html(self) -> str:
        """Return the table as an HTML fragment.

        The colour of a deviation says how far it is from 1: blue below, red above.
        """
        return html_table(self.heads, self.rows)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return self.html()


# Pairs of the tensors of two runs: those of a model before and after a change.

CAPTURED = {"cross_entropy_loss": "cross_entropy"}
"""Functions of torch that have another name in a captured program."""


def alone(rows: Sequence[Tracked]) -> ScaleTable:
    """Return the table of one run."""
    return ScaleTable(("scales",), tuple(ScaleRow.of(row) for row in rows))


def paired(before: Sequence[Tracked], after: Sequence[Tracked]) -> ScaleTable:
    """Return the table of two runs.

    See :meth:`amprewrite.unit_scaling.tracking.Tracks.beside`.
    """
    old, new = without_factors(before), without_factors(after)
    keys = [[_key(row) for row in rows] for rows in (old, new)]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    rows: list[ScaleRow] = []
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            both = zip(old[i:i_end], new[j:j_end], strict=True)
            rows += [ScaleRow.of(*pair) for pair in both]
        else:
            rows += [ScaleRow.of(row, None) for row in old[i:i_end]]
            rows += [ScaleRow.of(None, row) for row in new[j:j_end]]
    return ScaleTable(("before", "after"), tuple(rows))


def without_factors(rows: Sequence[Tracked]) -> list[Tracked]:
    """Return the tensors without those that are another one times a factor.

    Where one product of a tensor has other values, the tensor gets their scales: what
    those see who read it. Its gradient is its own.
    """
    plain = {row.name: row for row in rows}
    products: dict[str, list[Tracked]] = {}
    for row in rows:
        if row.scaled and row.forward != plain[row.scaled].forward:
            products.setdefault(row.scaled, []).append(row)
    found: list[Tracked] = []
    for row in rows:
        if row.scaled is None:
            read = products.get(row.name, [])
            found.append(
                replace(row, forward=read[0].forward) if len(read) == 1 else row
            )
    return found


def _key(row: Tracked) -> Hashable:
    """Return the key that both tensors of a pair have."""
    if row.parameter:
        return row.name
    name = base_name(row.name)
    return CAPTURED.get(name, name), row.shape


# Scales of the tensors of one run, and beside those of another one.


@dataclass(frozen=True)
class Tracks:
    """All float tensors of a run, parameters first, then in the order of the run.

    Attributes:
        rows: The tensors.
    """

    rows: tuple[Tracked, ...]

    def __getitem__(self, name: str) -> Tracked:
        """Return the tensor of that name."""
        found = {row.name: row for row in self.rows}
        return found[name]

    def beside(self, after: "Tracks") -> ScaleTable:
        """Return the scales of this run beside those of another one.

        Parameters are paired by name; other tensors by name and shape, in the order of
        the run. A tensor of one run alone has a row of its own. Factors of unit scaling
        are no rows: the tensor is shown as those who read it get it.

        Args:
            after: Scales of another form of the model: unit-scaled, converted, or after
                training.
        """
        return paired(self.rows, after.rows)

    def table(self) -> ScaleTable:
        """Return the scales as a table that can be drawn, or written as HTML."""
        return alone(self.rows)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return self.table().html()

    def __str__(self) -> str:
        """Return a table, a row for each tensor."""
        columns = f"{'std':>9} {'rms':>9} {'max':>9} {'zeros':>6}"
        wide = max((len(row.name) for row in self.rows), default=0)
        lines = [f"{'':{wide}} {columns} | {columns} of the gradient"]
        for row in self.rows:
            backward = "" if row.backward is None else str(row.backward)
            where = f" {row.where}" if row.where else ""
            lines.append(
                f"{row.name:{wide}} {row.forward} | {backward:{len(columns)}}{where}"
            )
        return "\n".join(line.rstrip() for line in lines)


# Run a model of either framework, and return the scales of its tensors.


def track_scales(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Tracks:
    """Run a model forward and backward, and return the scales of every float tensor.

    Every float output gets a gradient of unit Gaussian numbers. Where some are scalars
    they are losses: they get 1, and other outputs 0.
    Parameters, buffers and the state of random numbers stay as they are. In torch each
    call of a function is a tensor, views left out; in JAX each equation of the program,
    with functions under ``jit``, loops and branches as one.

    Args:
        model: A ``torch.nn.Module``, or a function of JAX whose first argument holds
            the parameters, or a JAX module that is a pytree of its own.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        ArgumentError: ``model`` is no such model, or has no float output.
    """
    run = load_for(model, "tracking").track
    return Tracks(tuple(run(model, tuple(args), dict(kwargs or {}))))
