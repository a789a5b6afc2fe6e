"""What a framework does for the core, and what the core asks of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from amprewrite.dtypes import Processor
from amprewrite.errors import UnsupportedError, warn
from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Call, Measured
from amprewrite.measure.samples import Observe, Walked
from amprewrite.plan import Plan
from amprewrite.plan.hardware.calibration import Calibration, Device
from amprewrite.plan.hardware.kernels import Kernels
from amprewrite.plan.sensitivity import Measurements, Probes


class Planner(Protocol):
    """Gives the plan for a program; it knows the policy, the framework does not."""

    def __call__(
        self,
        graph: ProgramGraph,
        *,
        keep_parameter_dtype: bool,
        captured: str,
        differentiable: bool = True,
        full: Collection[str] = (),
    ) -> Plan:
        """Return the plan for ``graph``.

        Args:
            graph: The program.
            keep_parameter_dtype: Whether parameters keep their dtype, to be trained.
            captured: How the program was captured, for the plan.
            differentiable: Whether gradients may be taken through the program.
            full: Names of ops that another plan has decided to run in full precision.
        """
        ...


class Budget(Protocol):
    """Plans within a tolerance, from what the framework measures."""

    @property
    def tolerance(self) -> "float | str | Mapping[str, float]":
        """Bound on the relative L2 error of all float outputs, or of each by path."""
        ...

    def probes(self, graph: ProgramGraph, *, keep_parameter_dtype: bool) -> Probes:
        """Return what may be rounded, to be measured."""
        ...

    def promoted(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool, captured: str
    ) -> Plan:
        """Return the plan of placement ``promote`` for ``graph``."""
        ...

    def plan(self, measured: Measurements) -> Plan:
        """Return the cheapest plan found that keeps the target."""
        ...


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        planner: Gives the plan for a captured program.
        args: Positional call arguments; None to capture at the first call.
        kwargs: Keyword call arguments.
        plan: A plan to apply instead of making one.
        dynamic_shapes: Extents that vary, as the framework takes them.
        training: Whether parameters are trained; None for the mode of the model.
        target: ``eager`` or ``compiled``.
        compile: Whether to compile the result.
        processor: Promotes operands of different dtypes; None leaves them alone.
        low: Dtype in which the model is traced a second time, to tell the casts that
            it means; empty if nothing is lowered.
        budget: Plans instead of ``planner`` where the user gave a tolerance.
        device: Kind of the device to plan for; empty for that of the model.
    """

    planner: Planner
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    plan: Plan | None = None
    dynamic_shapes: Any = None
    training: bool | None = None
    target: str = "eager"
    compile: bool = False
    processor: Processor | None = None
    low: str = ""
    budget: Budget | None = None
    device: str = ""

    @property
    def has_arguments(self) -> bool:
        """Whether the model can be captured now."""
        return self.args is not None or self.kwargs is not None

    def to_pickle(self, first: Plan | None) -> "Request":
        """Return the request for a copy that is captured at its first call.

        Args:
            first: The plan of the first program. It goes along where it was given or
                measured, and is applied to the first program again; else the same
                policy gives the same plan.
        """
        goes = self.plan is not None or self.budget is not None
        plan = (first or self.plan) if goes else None
        return replace(self, args=None, kwargs=None, plan=plan, budget=None)


def refuse_plan(request: Request) -> None:
    """Refuse a plan without arguments: nothing shows whether it fits.

    Raises:
        UnsupportedError: ``request`` has a plan.
    """
    if request.plan is not None:
        msg = "plan= needs args=, so that the program it belongs to can be captured"
        raise UnsupportedError(msg)


def announce(plan: Plan, announced: set[str] | None = None) -> None:
    """Warn of what a plan says the user should know.

    Args:
        plan: The plan.
        announced: Lines that the user has seen; new ones are added.
    """
    seen = announced if announced is not None else set[str]()
    for line in plan.warnings:
        if line not in seen:
            seen.add(line)
            warn(line)


class Stepper(Protocol):
    """Runs a model and its converted form side by side, for ``verify``."""

    def measure(self, original: Any, converted: Any, call: Call, /) -> Measured:
        """Run a model, its converted form and what could be used instead."""
        ...

    def walk(
        self, original: Any, converted: Any, call: Call, observe: Observe, /
    ) -> Walked:
        """Step through a model and its converted form op by op."""
        ...


class Framework(Stepper, Protocol):
    """What a framework does: everything that the core asks of torch or of JAX.

    The module ``framework`` of each package is one. A model is of the user's own class,
    and so is what becomes of it: their types are known to the framework alone.
    """

    def convert(self, model: Any, request: Request, /) -> Any:
        """Return the converted model."""
        ...

    def inspect(self, model: Any, request: Request, /) -> Plan:
        """Return the plan by which :meth:`convert` would convert, or has converted."""
        ...

    def original(self, converted: Any, /) -> Any:
        """Return the plain model of a converted one, with the weights of now."""
        ...

    def graph_text(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> str:
        """Return a model, plain or converted, as the text of a program graph."""
        ...

    def save_program(
        self,
        converted: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        path: Path,
        /,
    ) -> None:
        """Write a converted model to a file that the framework loads."""
        ...

    def calibrate(self) -> Calibration:
        """Time contractions, other ops and casts on the default device."""
        ...

    def device_of(
        self,
        model: Any,
        args: tuple[Any, ...] | None,
        kwargs: Mapping[str, Any] | None,
        /,
    ) -> Device:
        """Return the device on which a model runs."""
        ...

    def device_named(self, name: str, /) -> Device:
        """Return the device of a name, which need not be there."""
        ...

    def default_target(self) -> str:
        """Return who runs programs of the framework: ``eager`` or ``compiled``."""
        ...

    def kernels(self, device: Device, found: Calibration | None, /) -> Kernels:
        """Return what low contractions hand over on a device."""
        ...
