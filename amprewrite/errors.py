"""The errors and warnings of this package; each error is also a builtin exception.

A message has the place, the thing found, the thing wanted and a remedy. The parts that
a program may need (a key, an op, a list of mistakes) are attributes too.
"""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from amprewrite.user_code import runs_users


class AmpError(Exception):
    """Base of all errors of this package; catch it to catch them all."""


LISTED = 100
"""Most mistakes that the text of an error lists."""


class _MistakesError(AmpError, ValueError):
    """A file or an object with mistakes.

    Attributes:
        mistakes: One line for each mistake; all of them, not only the first. The text
            has :data:`LISTED`.
    """

    def __init__(self, message: str, mistakes: Sequence[str] = ()) -> None:
        """Build the message from a head line and one line per mistake."""
        self.mistakes = tuple(mistakes)
        more = len(self.mistakes) - LISTED
        rest = [f"... and {more} more"] if more > 0 else []
        super().__init__("\n  ".join([message, *self.mistakes[:LISTED], *rest]))


class PolicyError(_MistakesError):
    """A policy is not usable: unknown name, or a file with mistakes."""


class ArgumentError(AmpError, TypeError):
    """An argument of a public function is of the wrong kind."""


class GraphError(AmpError, ValueError):
    """A program graph breaks one of its invariants, or its text does not parse."""


class OpTableError(_MistakesError):
    """The table of ops has mistakes."""


class PromotionError(AmpError, TypeError):
    """Two dtypes have no common dtype in the chosen promotion system."""


class ComplexTruncationError(AmpError, TypeError):
    """A complex number would be cast to a real one, which drops its imaginary part."""


class CaptureError(AmpError, RuntimeError):
    """A model could not be read as a graph."""


class PlanMismatchError(_MistakesError):
    """A plan does not belong to the program it is applied to, or has mistakes."""


class NotCapturedError(AmpError, RuntimeError):
    """The plan of a converted module was requested before its first call."""


class VerifyError(AmpError, AssertionError):
    """Outputs that differ from the reference by more than the bound.

    Attributes:
        report: The whole report; None where the outputs could not be compared.
    """

    def __init__(self, message: str, report: object = None) -> None:
        """Store the report as an attribute."""
        self.report = report
        super().__init__(message)


class ToleranceError(AmpError, ValueError):
    """A tolerance is no usable bound, or no plan keeps it.

    Attributes:
        best: Smallest relative error of the outputs that was reached; None if no plan
            was tried.
        ops: Ops that round under every plan, the worst first.
    """

    def __init__(
        self, message: str, best: float | None = None, ops: Sequence[str] = ()
    ) -> None:
        """Store the best error and the ops as attributes."""
        self.best, self.ops = best, tuple(ops)
        super().__init__(message)


class OptimizerError(AmpError, ValueError):
    """An optimizer holds parameters that do not belong to the model to train."""


class UnitScalingError(AmpError, ValueError):
    """A rule of unit scaling is not usable: name, constraint, multiplier or extents."""


class LossScaleError(AmpError, FloatingPointError):
    """Gradients that are not finite while the loss scale is at its minimum.

    Attributes:
        parameter: Name of the first parameter with such a gradient; empty if unknown.
    """

    def __init__(self, message: str, parameter: str = "") -> None:
        """Store the name of the parameter as an attribute."""
        self.parameter = parameter
        super().__init__(message)


class TargetError(AmpError, ValueError):
    """A file or a target named on the command line is missing or not usable."""


class AmpWarning(UserWarning):
    """A fact that the user should know although the result is right.

    Examples: nothing was lowered, a rule matched nothing, a precision is slow on this
        device.
    """


class OverflowWarning(AmpWarning):
    """Values are finite in full precision and not finite in the low one."""


class ExactArgumentWarning(AmpWarning):
    """An argument that has to be exact, such as a phase, is rounded by too much."""


class LoopWarning(AmpWarning):
    """A loop takes another number of steps in low precision than in full precision."""


class Notice(str):
    """A line of a plan for which :func:`warn` has a class of its own.

    Attributes:
        category: Class of the warning.
    """

    __slots__ = ()
    category: ClassVar[type[AmpWarning]] = AmpWarning


class UnsupportedError(AmpError, NotImplementedError):
    """A construct or a framework that is not supported."""


def of_both(error: AmpError, cause: Exception) -> AmpError:
    """Return an error that is also of the class of its cause.

    Code around a model catches the classes that the model raises. The result has the
    attributes of the cause. If Python cannot derive a class from both (the cause has a
    memory layout of its own, or forbids subclasses), the result is the error itself.

    Args:
        error: The error.
        cause: The exception of the model.
    """
    kind, message = type(cause), str(error)

    def text(_: object) -> str:
        return message  # which KeyError would quote

    def reduced(_: object) -> tuple[type[AmpError], tuple[str]]:
        return type(error), (message,)  # the class of both has no name to load

    body = {
        "__module__": type(error).__module__,
        "__str__": text,
        "__reduce__": reduced,
    }
    try:
        both = type(type(error).__name__, (type(error), kind), body)
        layout: Any = both.__base__  # whose objects it lays out alike
        twin = layout.__new__(both, message)
    except Exception:  # noqa: BLE001  # the user's class may refuse it in any way
        return error
    twin.__dict__.update({**vars(cause), **vars(error)})
    return twin


def warn(message: str) -> None:
    """Warn with an :class:`AmpWarning` that points to the line of the user.

    That is the innermost one outside of this package and the frameworks. All warnings
    of this package go through here. A :class:`Notice` has a class of its own.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and not runs_users(frame):
        frame, level = frame.f_back, level + 1
    category = message.category if isinstance(message, Notice) else AmpWarning
    warnings.warn(str(message), category, stacklevel=level)
