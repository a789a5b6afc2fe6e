"""Effects of ops on the error of the outputs, as predicted and as measured."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING

from amprewrite.errors import UnsupportedError

if TYPE_CHECKING:  # they load numpy, and a report is loaded with the package
    from amprewrite.frameworks.base import Stepper
    from amprewrite.measure.runs import Ablation, Call, Run
    from amprewrite.plan.sensitivity import Sensitivity


@dataclass(frozen=True)
class Live:
    """The models behind a report, so that their ops can be restored.

    Attributes:
        framework: The framework of both.
        original: The model.
        converted: Its converted form.
        call: The arguments.
        reference: Outputs of the original in the reference's dtype.
        sensitivity: Sensitivity of the outputs to each rounding; None if unknown.
    """

    framework: "Stepper"
    original: object
    converted: object
    call: "Call"
    reference: "Run"
    sensitivity: "Sensitivity | None" = None

    @cached_property
    def ablation(self) -> "Ablation":
        """The converted program with ops that can be restored, captured once.

        Raises:
            UnsupportedError: There is none; the message says why.
        """
        from amprewrite.measure.runs import Call  # noqa: PLC0415  # it loads numpy

        call = Call(self.call.args, self.call.kwargs)
        found = self.framework.ablation(self.original, self.converted, call)
        if isinstance(found, str):
            msg = (
                f"no op can be restored: {found}; verify a model that was converted "
                f"with args=, so that it is one graph with a plan"
            )
            raise UnsupportedError(msg)
        return found

    @property
    def squares(self) -> Mapping[str, float]:
        """Predicted part of each op in the squared error of the outputs."""
        if self.sensitivity is None:
            return {}
        return self.sensitivity.by_op(self.ablation.plan, self.ablation.graph)


@dataclass(frozen=True, slots=True)
class Left:
    """The error of the outputs that is left in one run.

    Attributes:
        error: Relative L2 error of all float outputs together.
        lost: Number of elements that are not finite and are in the reference.
    """

    error: float
    lost: int = 0

    def removed(self, left: "Left") -> float:
        """Return the share of this error that is gone in ``left``.

        It is a share of the squared error; of elements that are not finite if there are
        any. It is negative where the error has grown.
        """
        if self.lost:
            return (self.lost - left.lost) / self.lost
        if not isfinite(left.error):
            return -inf
        return 1.0 - (left.error / self.error) ** 2 if self.error else 0.0


@dataclass
class Effects:
    """Measurements of one converted program with ops restored.

    Attributes:
        live: The models.
        base: The error with no op restored.
        runs: Number of runs until now.
    """

    live: Live
    base: Left
    runs: int = 0
    _known: dict[frozenset[str], Left] = field(
        default_factory=dict[frozenset[str], Left]
    )

    def left(self, restored: Collection[str]) -> Left:
        """Return the error with some ops restored; a set is run once."""
        from amprewrite.verify.metrics import joint_error, lost_elements  # noqa: PLC0415  # numpy

        key = frozenset(restored)
        if not key:
            return self.base
        if key not in self._known:
            self.runs += 1
            wanted = self.live.reference.outputs
            found = self.live.ablation.run(key).outputs
            pairs = [(found[name], array) for name, array in wanted.items()]
            lost = sum(lost_elements(one, exact) for one, exact in pairs)
            self._known[key] = Left(joint_error(pairs), lost)
        return self._known[key]

    def removed(self, restored: Collection[str]) -> float:
        """Return the share of the error that restoring ops removes."""
        return self.base.removed(self.left(restored))

    def measured(self, op: str) -> float | None:
        """Return the error with one op restored, if that was run."""
        known = self._known.get(frozenset({op}))
        return None if known is None else known.error
