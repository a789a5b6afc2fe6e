"""Compare a converted model with the original: outputs, gradients, every op."""

from amprewrite.verify.ops.op_errors import OpError
from amprewrite.verify.report import Report
from amprewrite.verify.rows import DiscreteError, GradientError, OutputError

__all__ = [
    "DiscreteError",
    "GradientError",
    "OpError",
    "OutputError",
    "Report",
]
