"""Scales of the tensors of one run, or of two beside each other, as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amprewrite.unit_scaling.tracking.page import html_table, page_of
from amprewrite.unit_scaling.tracking.plot import plot_rows
from amprewrite.unit_scaling.tracking.rows import Kind, ScaleRow


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
