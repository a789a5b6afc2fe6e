"""One sampled call of a monitored model: its report, or the reason for none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from amprewrite.verify import OpError, Report

DRIFT = 10.0
"""Factor on the median of earlier errors, above which an error is a drift.

Errors of calls with other numbers differ by a small factor: each is a sum of many
roundings.
"""


@dataclass(frozen=True)
class Sample:
    """A call of a converted model, compared with full precision.

    Attributes:
        call: Number of the call, from 1.
        seconds: Time that the comparison took, the call itself left out.
        report: The comparison; None if it failed.
        failure: The reason why there is no report; empty if there is one.
        usual: Median of the errors of the samples before; None for the first.
    """

    call: int
    seconds: float
    report: Report | None
    failure: str = ""
    usual: float | None = None

    @property
    def drift(self) -> float:
        """Error over the median of those before; 1 for the first."""
        if self.report is None or not self.usual:
            return 1.0
        return self.report.error / self.usual

    @property
    def nonfinite(self) -> tuple[OpError, ...]:
        """The ops that made values that are not finite, in program order.

        Their reference is finite there: the first one is where it began.
        """
        ops = () if self.report is None else self.report.ops
        return tuple(op for op in ops if op.nonfinite)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem of the report, each op as above, and a drift."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.report is None:
            yield f"not compared: {self.failure}"
            return
        yield from self.report.problems
        for op in self.nonfinite[:1]:
            others = len(self.nonfinite) - 1
            more = f"; {others} ops after it have such values too" if others else ""
            yield (
                f"{op.nonfinite} elements of {op.op} ({op.native}, {op.precision}) at "
                f"{op.path or 'the top'} are not finite and are in the reference{more}"
            )
        if not self.drift <= DRIFT:
            yield (
                f"drift: relative error {self.report.error:.3g}, "
                f"{self.drift:.3g} times the median of the samples before"
            )


def usual_error(samples: Sequence[Sample]) -> float | None:
    """Return the median of the finite errors of samples; None without any."""
    errors = [s.report.error for s in samples if s.report is not None]
    finite = [error for error in errors if isfinite(error)]
    return median(finite) if finite else None
