"""Ablation: run a converted program with some of its ops restored to the original's.

A restored op is the original's, in the dtypes that it was traced with, on operands that
were not rounded on the way to it. All others run as converted. The decrease of the
error of the outputs is the effect of the restored ops. The program is captured once for
all runs; plans and graphs are not written again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Run
from amprewrite.plan import Plan


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of one op on the operands of a run, in seconds.

    Attributes:
        converted: As converted.
        restored: As in the original.
    """

    converted: float
    restored: float

    @property
    def more(self) -> float:
        """Additional time of the restored op; negative if it is faster."""
        return self.restored - self.converted


class Ablation(Protocol):
    """A converted program of which ops can be restored, on the arguments of a call."""

    @property
    def plan(self) -> Plan:
        """The plan of the converted program."""
        ...

    @property
    def graph(self) -> ProgramGraph:
        """The original's program."""
        ...

    @property
    def restorable(self) -> frozenset[str]:
        """Names of the ops of the plan that can be restored one by one.

        Inserted nodes, by the names of their samples, can be too: then they hand on
        their source, rounded to their dtype. A restored op that makes, views or writes
        a storage that is written in place keeps it full as a whole, as a plan does.
        """
        ...

    @property
    def seconds(self) -> Mapping[str, Seconds]:
        """Time of each op that a run has restored, if it could be taken."""
        ...

    def run(self, restored: Collection[str], /) -> Run:
        """Run the converted program with some ops restored.

        Args:
            restored: Names of ops of the plan and of inserted nodes.
        """
        ...
