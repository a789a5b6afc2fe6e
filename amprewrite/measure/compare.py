"""Comparison of a model with its converted form: the order of the runs and their notes.

Each framework runs models in its own way, as a :class:`Measurer` and a :class:`Walker`;
the drivers here decide the runs, the reference dtype and the treatment of failures.

A walk over the ops computes the outputs of the original in the dtype of the reference.
Where the original itself agrees with them, it is not run once more for the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Protocol

import numpy as np

from amprewrite.errors import AmpError
from amprewrite.ir import ProgramGraph
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Array, Measured, Observe, Run, Stepped, Walked
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

NOISE = 2.0**-16
"""Relative L2 error of a model in float32 against another run of its program.

BERT-base has 2**-21. A larger one may have other reasons than rounding, such as a
capture that is another program, or cancellation.
"""

NO_PLAN = "bfloat16"
"""Low dtype of the baselines for a converted model without a plan."""


class Measurer(Protocol):
    """Runner of one model and of its converted form, on the arguments of one call.

    Attributes:
        plan: The plan of the converted model; None if it has none.
        model: Noun for the model, in notes: ``model`` or ``function``.
    """

    plan: Plan | None
    model: str

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

    @property
    def shares_reference(self) -> bool:
        """Whether the outputs of a walk may be the reference, by the runs until now.

        Not those with gradients, and not of a model that draws random numbers.
        """
        ...

    def noted(self, dtype: str, /) -> Sequence[str]:
        """Return notes on a reference that a walk gave, by the run of the original."""
        ...


Steps = Callable[[Plan | None, str], Walked]
"""Function that walks over a model and its converted form, by the plan.

The original runs in the dtype that is the second argument.
"""


class Walker(Protocol):
    """Two forms of one program, to be run side by side.

    Attributes:
        plan: The plan of the converted form.
        refusals: Exceptions of programs that do not run in a dtype.
    """

    plan: Plan
    refusals: tuple[type[Exception], ...]

    def isolated(self) -> AbstractContextManager[None]:
        """Keep the state of both forms while the context is entered."""
        ...

    def read(self) -> ProgramGraph | str:
        """Return the original's program, or a note if it is not that of the plan."""
        ...

    def sensitivity(self, probes: Probes, /) -> Sensitivity:
        """Return the error of each rounding, relative to the norm of each output."""
        ...

    def steps(self, dtype: str, observe: Observe, /) -> Stepped:
        """Run both forms, the original in ``dtype``."""
        ...


def low_of(plan: Plan | None) -> str:
    """Return the low dtype of the baselines; empty if the plan lowers nothing."""
    return NO_PLAN if plan is None else plan.low


def loss_scale(plan: Plan | None) -> float:
    """Return the factor on the loss."""
    return SCALE if low_of(plan) == "float16" else 1.0


def compare(source: Measurer, wanted: str, steps: Steps | None = None) -> Measured:
    """Run a model, its converted form and the baselines, and step through both.

    The reference and the converted model must run; the failure of a baseline is
    recorded.

    Args:
        source: Runs them.
        wanted: Dtype of the reference; float32 is used where that does not run.
        steps: Walks over both; None for no walk.
    """
    plan, low = source.plan, low_of(source.plan)
    runs, failures = dict[str, Run](), dict[str, str]()
    walked, exact, dtype, notes = None, None, wanted, list[str]()
    if steps is not None and source.shares_reference:
        _attempt({ORIGINAL: source.baselines(low)[ORIGINAL]}, runs, failures)
        runs[CONVERTED] = source.converted()
        walked = steps(plan, wanted)
        exact = _shared(source, wanted, walked, runs.get(ORIGINAL))
    if exact is None or walked is None:
        exact, dtype, notes = _reference(source, wanted)
    else:
        notes += *walked.noted, *source.noted(wanted)
    runs[REFERENCE] = exact
    if CONVERTED not in runs:
        runs[CONVERTED] = source.converted()
    compiled = source.compiled()
    if compiled is not None:
        runs[JITTED] = compiled
    _attempt(source.baselines(low), runs, failures)
    ordered = {name: runs[name] for name in (*FIRST, *runs) if name in runs}
    notes += source.notes()
    if steps is not None and (walked is None or walked.reference == wanted != dtype):
        walked = steps(plan, dtype)
    return Measured(dtype, ordered, failures, plan, low, tuple(notes), walked)


def _attempt(
    attempts: Mapping[str, Callable[[], Run]],
    runs: dict[str, Run],
    failures: dict[str, str],
) -> None:
    """Record the run of each baseline, or its failure, that was not tried before."""
    for name, attempt in attempts.items():
        if name in runs or name in failures:
            continue
        try:
            runs[name] = attempt()
        except Exception as error:  # noqa: BLE001  # a baseline's failure is a finding
            failures[name] = first_line(error)


def _shared(
    source: Measurer, wanted: str, walked: Walked, original: Run | None
) -> Run | None:
    """Return the outputs of a walk that are the reference; None if it is run apart.

    A walk runs the program that was captured. The original, run as it is, shows that
    this is the model: it agrees with the walk but for the noise of its own dtype.
    """
    if walked.run is None or walked.reference != wanted or original is None:
        return None
    if not source.shares_reference or not agree(original, walked.run):
        return None
    return replace(walked.run, dtypes=original.dtypes)


def agree(found: Run, exact: Run) -> bool:
    """Return whether each output of two runs is the same, but for noise of float32.

    Those that are no floats have to be equal.
    """
    if _shapes(found) != _shapes(exact):
        return False
    others, outputs = found.others.items(), found.outputs.items()
    if not all(np.array_equal(array, exact.others[name]) for name, array in others):
        return False
    return all(_is_noise(array, exact.outputs[name]) for name, array in outputs)


def _is_noise(found: Array, exact: Array) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        error, size = np.linalg.norm(found - exact), np.linalg.norm(exact)
        return bool(error <= NOISE * size < inf)


def _shapes(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((n, x.shape) for n, x in (*run.outputs.items(), *run.others.items()))


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


def walk(source: Walker | str, wanted: str, observe: Observe) -> Walked:
    """Compare every op of a converted form with the original's.

    Where an op does not run in the dtype of the reference, the walk is begun again in
    float32.

    Args:
        source: Runs both; the reason where there is no walk.
        wanted: Dtype of the reference.
        observe: Consumer of the samples; those of the last walk count.
    """
    if isinstance(source, str):
        return Walked(notes=(f"no errors by op: {source}",))
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
                stepped = source.steps(dtype, observe)
        except source.refusals as error:
            notes.append(f"no errors by op in {dtype}: {first_line(error)}")
        else:
            notes += stepped.notes
            noted = tuple(stepped.noted)
            return Walked(dtype, graph, tuple(notes), found, stepped.run, noted)
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
