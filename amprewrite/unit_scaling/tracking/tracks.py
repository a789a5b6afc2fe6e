"""Scales of the tensors of one run, and beside those of another one."""

from dataclasses import dataclass

from amprewrite.unit_scaling.tracking.beside import alone, paired
from amprewrite.unit_scaling.tracking.scales import Tracked
from amprewrite.unit_scaling.tracking.table import ScaleTable


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
