"""Every error that amprewrite raises on purpose; each also is the builtin expected.

A message says where, what was found, what is wanted and what to do. The parts that
a program may want to read (a key, an op, a list of mistakes) are attributes too.
"""

from collections.abc import Sequence


class AmpError(Exception):
    """Base of all errors of this package; catch it to catch them all."""


class PolicyError(AmpError, ValueError):
    """A policy is not usable: unknown name, or a file with mistakes.

    Attributes:
        mistakes: One line for each mistake; all of them, not only the first.
    """

    def __init__(self, message: str, mistakes: Sequence[str] = ()) -> None:
        """Build the message from a head line and one line per mistake."""
        self.mistakes = tuple(mistakes)
        super().__init__("\n  ".join([message, *self.mistakes]))


class GraphError(AmpError, ValueError):
    """A program graph breaks one of its invariants, or its text does not parse."""


class PromotionError(AmpError, TypeError):
    """Two dtypes have no common dtype in the chosen promotion system."""


class ComplexTruncationError(AmpError, TypeError):
    """A complex number would be cast to a real one, which drops its imaginary part."""


class CaptureError(AmpError, RuntimeError):
    """A model could not be read as a graph."""


class PlanMismatchError(AmpError, ValueError):
    """A plan does not belong to the program it is applied to."""


class NotCapturedError(AmpError, RuntimeError):
    """A converted module was asked for its plan before its first call."""


class VerifyError(AmpError, AssertionError):
    """Outputs differ from the reference by more than the bound.

    Attributes:
        report: The whole report; None where the outputs could not be compared.
    """

    def __init__(self, message: str, report: object = None) -> None:
        """Hold the report beside the message."""
        self.report = report
        super().__init__(message)


class ToleranceError(AmpError, ValueError):
    """A tolerance is no usable bound, or no plan keeps it.

    Attributes:
        best: Smallest relative error of the outputs that was reached; None if no plan
            was tried.
        ops: Ops whose rounding no plan avoids, the worst first.
    """

    def __init__(
        self, message: str, best: float | None = None, ops: Sequence[str] = ()
    ) -> None:
        """Hold what was reached beside the message."""
        self.best, self.ops = best, tuple(ops)
        super().__init__(message)


class OptimizerError(AmpError, ValueError):
    """An optimizer holds parameters that are not those of the model it is to train."""


class LossScaleError(AmpError, FloatingPointError):
    """Gradients are not finite, and no smaller loss scale is allowed.

    Attributes:
        parameter: Name of the first parameter whose gradient is not finite; empty if
            it is not known.
    """

    def __init__(self, message: str, parameter: str = "") -> None:
        """Hold the name beside the message."""
        self.parameter = parameter
        super().__init__(message)


class TargetError(AmpError, ValueError):
    """What a command was told to read or to write is not there or not usable."""


class AmpWarning(UserWarning):
    """Something the user should know, though the result is right.

    Nothing was lowered, a rule matched nothing, a precision is slow on this device.
    """


class UnsupportedError(AmpError, NotImplementedError):
    """A construct or a framework that is not supported."""
