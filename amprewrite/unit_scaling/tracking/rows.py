"""Rows of a table of scales: one tensor, in one run or in several."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from amprewrite.unit_scaling.tracking.scales import Scale, Tracked

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
