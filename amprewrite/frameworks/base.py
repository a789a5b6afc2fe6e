"""The protocol that frameworks implement for the core, their requests and arguments."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from amprewrite.dtypes import Processor
from amprewrite.errors import ArgumentError, UnsupportedError, warn
from amprewrite.ir import ProgramGraph
from amprewrite.measure.compare import Steps
from amprewrite.measure.runs import Ablation, Call, Look, Measured, Observe, Walked
from amprewrite.measure.tolerance import Budget
from amprewrite.plan import Plan
from amprewrite.plan.hardware import Calibration, Device, Kernels


class Planner(Protocol):
    """Function that plans a program by a policy, which the framework does not know."""

    def __call__(
        self,
        graph: ProgramGraph,
        *,
        keep_parameter_dtype: bool,
        captured: str,
        differentiable: bool = True,
        full: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> Plan:
        """Return the plan for ``graph``.

        Args:
            graph: The program.
            keep_parameter_dtype: Whether parameters keep their dtype, to be trained.
            captured: Description of the capture, for the plan.
            differentiable: Whether gradients may be taken through the program.
            full: Names of ops that another plan has decided to run in full precision.
            elsewhere: Module paths of the model that other programs run.
        """
        ...

    def exact_values(
        self, graph: ProgramGraph, outputs: Collection[str] = ()
    ) -> frozenset[str]:
        """Return the values of ``graph`` that make exact arguments.

        Args:
            graph: The program.
            outputs: Outputs that do so outside of it: it is a rule for derivatives.
        """
        ...


class Recomputer(Protocol):
    """Function that adds the regions to compute again to a plan."""

    def __call__(self, graph: ProgramGraph, plan: Plan) -> Plan:
        """Return ``plan`` with its regions; one for inference as it is.

        Args:
            graph: The program.
            plan: The plan for it.
        """
        ...


@dataclass(frozen=True)
class Request:
    """Request to convert or inspect a model.

    Attributes:
        planner: Plans a captured program.
        args: Positional call arguments; None to capture at the first call.
        kwargs: Keyword call arguments.
        plan: A plan to apply instead of making one.
        dynamic_shapes: Extents that vary, as the framework takes them.
        training: Whether parameters are trained; None for the mode of the model.
        target: ``eager`` or ``compiled``.
        compile: Whether to compile the result.
        processor: Promotion system for operands of different dtypes; None for none.
        low: Dtype of a second trace of the model, which reveals user casts; empty if
            nothing is lowered.
        budget: Planner in place of ``planner`` if the user gave a tolerance.
        device: Kind of the device to plan for; empty for that of the model.
        lowering: Whether the program that runs is lowered: the same in fewer
            steps.
        recompute: Adds to a plan for training the regions that are computed again in
            the backward pass; None to keep the values that the framework keeps.
    """

    planner: Planner
    args: tuple[object, ...] | None = None
    kwargs: Mapping[str, object] | None = None
    plan: Plan | None = None
    dynamic_shapes: object = None
    training: bool | None = None
    target: str = "eager"
    compile: bool = False
    processor: Processor | None = None
    low: str = ""
    budget: Budget | None = None
    device: str = ""
    lowering: bool = True
    recompute: Recomputer | None = None

    def with_regions(self, graph: ProgramGraph, plan: Plan) -> Plan:
        """Return a plan with the regions that the request asks for."""
        return plan if self.recompute is None else self.recompute(graph, plan)

    @property
    def has_arguments(self) -> bool:
        """Whether there are arguments to capture the model with now."""
        return self.args is not None or self.kwargs is not None

    def to_pickle(self, first: Plan | None) -> "Request":
        """Return the request for a copy that is captured at its first call.

        Args:
            first: The plan of the first program. If it was given or measured, it is
                kept and applied to the first program again; otherwise the same policy
                leads to the same plan.
        """
        goes = self.plan is not None or self.budget is not None
        plan = (first or self.plan) if goes else None
        return replace(self, args=None, kwargs=None, plan=plan, budget=None)


def refuse_plan(request: Request) -> None:
    """Refuse a plan without arguments: it cannot be compared with a program.

    Raises:
        UnsupportedError: ``request`` has a plan.
    """
    if request.plan is not None:
        msg = "plan= needs args=, so that the program it belongs to can be captured"
        raise UnsupportedError(msg)


def announce(plan: Plan, announced: set[str] | None = None) -> None:
    """Emit the warnings of a plan that the user has not seen.

    Args:
        plan: The plan.
        announced: Warnings that the user has seen; new ones are added.
    """
    seen = announced if announced is not None else set[str]()
    for line in plan.warnings:
        if line not in seen:
            seen.add(line)
            warn(line)


class Stepper(Protocol):
    """Runner of a model and its converted form side by side, for ``verify``."""

    def measure(
        self,
        original: object,
        converted: object,
        call: Call,
        steps: Steps | None = None,
        /,
    ) -> Measured:
        """Run a model, its converted form and the baselines.

        Args:
            original: The model.
            converted: Its converted form.
            call: Arguments, reference dtype, whether gradients are compared.
            steps: Calls :meth:`walk`, which may share work; None for no walk.
        """
        ...

    def walk(
        self, original: object, converted: object, call: Call, observe: Observe, /
    ) -> Walked:
        """Step through a model and its converted form op by op."""
        ...

    def ablation(
        self, original: object, converted: object, call: Call, /
    ) -> Ablation | str:
        """Return a converted model with ops that can be restored.

        It is a reason, in words, where there is none.
        """
        ...


@dataclass(frozen=True)
class Sample:
    """A small model on a device, to try a conversion there.

    Attributes:
        device: The device.
        bfloat16: Whether it has instructions for bfloat16; None if unknown.
        why: The instructions or the generation that this follows from.
        model: The model.
        args: Positional call arguments.
    """

    device: Device
    bfloat16: bool | None
    why: str
    model: object
    args: tuple[object, ...]


class Watcher(Protocol):
    """Consumer of the calls of a model, for ``monitor``."""

    def due(self) -> int:
        """Count a call; return its number if it is to be compared, else 0."""
        ...

    def compare(
        self, number: int, args: tuple[object, ...], kwargs: Mapping[str, object], /
    ) -> Callable[[], None]:
        """Compare a call, and return the rest, to be done in the caller's thread."""
        ...


class Attached(NamedTuple):
    """A model with a watcher of its calls.

    Attributes:
        call: Function that calls the model; a module may also be called itself.
        detach: Function that removes the watcher.
    """

    call: Callable[..., object]
    detach: Callable[[], None]


class Framework(Stepper, Protocol):
    """The interface of a framework: all that the core requires of torch or JAX.

    The module ``framework`` of each package implements it. Models are of the user's own
    classes, plain and converted: objects here, whose kind the framework checks.
    """

    def convert(self, model: object, request: Request, /) -> object:
        """Return the converted model."""
        ...

    def inspect(self, model: object, request: Request, /) -> Plan:
        """Return the plan that :meth:`convert` would apply, or has applied."""
        ...

    def original(self, converted: object, /) -> object:
        """Return the plain model of a converted one, with its current weights."""
        ...

    def plan_of(self, model: object, /) -> Plan:
        """Return the plan of a converted model, or of one that it compiled."""
        ...

    def attach(self, converted: object, watcher: Watcher, /) -> Attached:
        """Show the calls of a model to a watcher, each before it runs."""
        ...

    def observe(
        self,
        model: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        look: Look,
        /,
        *,
        gradients: bool = True,
    ) -> None:
        """Run a model, and show its parameters and tensors, with their gradients."""
        ...

    def graph_text(
        self, model: object, args: tuple[object, ...], kwargs: Mapping[str, object], /
    ) -> str:
        """Return a model, plain or converted, as the text of a program graph."""
        ...

    def program_files(self) -> Mapping[str, str]:
        """Return the suffixes of the files of programs, and the reader of each."""
        ...

    def save_program(
        self,
        converted: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
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
        model: object,
        args: tuple[object, ...] | None,
        kwargs: Mapping[str, object] | None,
        /,
    ) -> Device:
        """Return the device that a model runs on."""
        ...

    def samples(self) -> Sequence[Sample]:
        """Return a small model on each kind of device of this machine."""
        ...

    def device_named(self, name: str, /) -> Device:
        """Return the device of a name, which may be absent."""
        ...

    def default_target(self) -> str:
        """Return the usual way to run its programs: ``eager`` or ``compiled``."""
        ...

    def kernels(self, device: Device, found: Calibration | None, /) -> Kernels:
        """Return the accumulator dtypes of low contractions on a device."""
        ...


def check_arguments(args: object, kwargs: object) -> None:
    """Check that call arguments, if given, are a tuple and a mapping.

    Args:
        args: Positional call arguments, or None.
        kwargs: Keyword call arguments, or None.

    Raises:
        ArgumentError: They are of another type.
    """
    if args is not None and not isinstance(args, tuple):
        msg = f"args is a {_kind(args)}; want a tuple of the positional call arguments"
        raise ArgumentError(f"{msg}{_instead(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        msg = (
            f"kwargs is a {_kind(kwargs)}; want a dict of the keyword call arguments, "
            f"such as kwargs={{'mask': mask}}"
        )
        raise ArgumentError(msg)


def check_overrides(overrides: object) -> None:
    """Check that ``overrides`` is a list of rules.

    Its members are checked where they are read.

    Raises:
        ArgumentError: It is one rule, or no sequence.
    """
    if isinstance(overrides, (list, tuple)):
        return
    msg = (
        f"overrides is a {_kind(overrides)}; want a list of rules: "
        f"overrides=[{{'path': 'decoder.*', 'class': 'deny'}}]"
    )
    raise ArgumentError(msg)


def _kind(given: object) -> str:
    return type(given).__name__


def _instead(args: Any) -> str:
    """Return a hint on how to pass ``args``."""
    if isinstance(args, Mapping):
        return "; keyword arguments go to kwargs="
    if isinstance(args, list):
        return ": args=(x,), or args=tuple(...) of the list"
    return ": args=(x,), with a comma also where there is one"
