"""Compare a converted model with the original: outputs, gradients, every op."""

from amprewrite.verify.blame import Blame, Blamed
from amprewrite.verify.fix import Fix
from amprewrite.verify.report import Report
from amprewrite.verify.rows import DiscreteError, GradientError, OpError, OutputError

__all__ = [
    "Blame",
    "Blamed",
    "DiscreteError",
    "Fix",
    "GradientError",
    "OpError",
    "OutputError",
    "Report",
]
