"""Compare a converted model with the original: outputs, gradients, every op."""

from amprewrite.verify.blame import OpError
from amprewrite.verify.compare import verify
from amprewrite.verify.report import GradientError, OutputError, Report

__all__ = ["GradientError", "OpError", "OutputError", "Report", "verify"]
