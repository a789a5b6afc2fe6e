"""Compare a converted model with the original: outputs, gradients, every op."""

from amprewrite.verify.culprits import Blame, Blamed, Fix
from amprewrite.verify.ops.op_errors import OpError
from amprewrite.verify.report import Report
from amprewrite.verify.rows import DiscreteError, GradientError, OutputError

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
