"""Comparison of a model with its converted form: the order of the runs and their notes.

Each framework runs models in its own way, as a :class:`Measurer` and a :class:`Walker`;
the drivers here decide the runs, the reference dtype and the treatment of failures.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from amprewrite.errors import AmpError
from amprewrite.ir import ProgramGraph
from amprewrite.measure.run_names import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Measured, Run
from amprewrite.measure.samples import Observe, Walked
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity, probes_of

SCALE = 65536.0
"""Factor on the loss of models in float16, against gradients that vanish.

Source: the initial scale of torch.amp.GradScaler.
"""

FALLBACK = "float32"
"""Dtype of the reference where the wanted one does not run."""

FIRST = (REFERENCE, CONVERTED, ORIGINAL, JITTED)
"""Order of the runs in a report; other baselines follow."""

NO_PLAN = "bfloat16"
"""Low dtype of the baselines for a converted model without a plan."""


class Measurer(Protocol):
    """Runner of one model and of its converted form, on the arguments of one call."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the converted model; None if it has none."""
        ...

    @property
    def model(self) -> str:
        """Noun for the model, in notes: ``model`` or ``function``."""
        ...

    def reference(self, dtype: str, /) -> tuple[Run, Sequence[str]]:
        """Run the original in ``dtype``, and return notes on the run."""
        ...

    def converted(self) -> Run:
        """Run the converted model op by op, as far as the framework can."""
        ...

    def compiled(self) -> Run | None:
        """Run the converted model compiled as a whole; None if that does not apply."""
        ...

    def baselines(self, low: str, /) -> Mapping[str, Callable[[], Run]]:
        """Return the runs that may fail, by name.

        Args:
            low: Dtype of the low ones; empty for none of them.
        """
        ...

    def notes(self) -> Sequence[str]:
        """Return notes for the user, after all runs."""
        ...


class Walker(Protocol):
    """Two forms of one program, to be run side by side."""

    @property
    def plan(self) -> Plan:
        """The plan of the converted form."""
        ...

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """Exceptions of programs that do not run in a dtype."""
        ...

    def isolated(self) -> AbstractContextManager[None]:
        """Keep the state of both forms while the context is entered."""
        ...

    def read(self) -> ProgramGraph | str:
        """Return the original's program, or a note if it is not that of the plan."""
        ...

    def sensitivity(self, probes: Probes, /) -> Sensitivity:
        """Return the error of each rounding, relative to the norm of each output."""
        ...

    def steps(self, dtype: str, observe: Observe, /) -> Sequence[str]:
        """Run both forms, the original in ``dtype``, and return notes."""
        ...


def low_of(plan: Plan | None) -> str:
    """Return the low dtype of the baselines; empty if the plan lowers nothing."""
    return NO_PLAN if plan is None else plan.low


def loss_scale(plan: Plan | None) -> float:
    """Return the factor on the loss."""
    return SCALE if low_of(plan) == "float16" else 1.0


def compare(source: Measurer, wanted: str) -> Measured:
    """Run a model, its converted form and the baselines.

    The reference and the converted model must run; the failure of a baseline is
    recorded.

    Args:
        source: Runs them.
        wanted: Dtype of the reference; float32 is used where that does not run.
    """
    exact, dtype, notes = _reference(source, wanted)
    runs, failures = {REFERENCE: exact, CONVERTED: source.converted()}, dict[str, str]()
    compiled, low = source.compiled(), low_of(source.plan)
    if compiled is not None:
        runs[JITTED] = compiled
    for name, attempt in source.baselines(low).items():
        try:
            runs[name] = attempt()
        except Exception as error:  # noqa: BLE001  # a baseline's failure is a finding
            failures[name] = first_line(error)
    ordered = {name: runs[name] for name in (*FIRST, *runs) if name in runs}
    notes += source.notes()
    return Measured(dtype, ordered, failures, source.plan, low, tuple(notes))


def _reference(source: Measurer, wanted: str) -> tuple[Run, str, list[str]]:
    """Return the reference run, its dtype, and the notes on it."""
    notes: list[str] = []
    if wanted != FALLBACK:
        try:
            run, said = source.reference(wanted)
        except Exception as error:  # noqa: BLE001  # any failure of the model itself
            notes.append(
                f"the reference is {FALLBACK}: the {source.model} does not run in "
                f"{wanted} ({first_line(error)})"
            )
        else:
            return run, wanted, [*said]
    run, said = source.reference(FALLBACK)
    return run, FALLBACK, [*notes, *said]


def walk(source: Walker, wanted: str, observe: Observe) -> Walked:
    """Compare every op of a converted form with the original's.

    Where an op does not run in the dtype of the reference, the walk is begun again in
    float32.

    Args:
        source: Runs both.
        wanted: Dtype of the reference.
        observe: Consumer of the samples; those of the last walk count.
    """
    notes: list[str] = []
    found: Sensitivity | None = None
    for dtype in dict.fromkeys((wanted, FALLBACK)):
        try:
            with source.isolated():
                graph = source.read()
                if isinstance(graph, str):
                    return Walked(notes=(f"no errors by op: {graph}",))
                if dtype == wanted:
                    found = _sensitivity(source, graph, notes)
                said = source.steps(dtype, observe)
        except source.refusals as error:
            notes.append(f"no errors by op in {dtype}: {first_line(error)}")
        else:
            return Walked(dtype, graph, (*notes, *said), found)
    return Walked(notes=tuple(notes))


def _sensitivity(
    source: Walker, graph: ProgramGraph, notes: list[str]
) -> Sensitivity | None:
    """Return the sensitivity to the roundings of the plan, if it can be measured."""
    if not source.plan.lowered:
        return None
    try:
        return source.sensitivity(probes_of(source.plan, graph))
    except (AmpError, *source.refusals) as error:
        notes.append(f"no predicted error: {first_line(error)}")
        return None


def first_line(error: BaseException) -> str:
    """Return the class and the first line of an exception, for a note."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
