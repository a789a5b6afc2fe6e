"""Compare the runs of a model and make the report."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np

from amprewrite.errors import UnsupportedError, VerifyError
from amprewrite.frameworks.base import (
    CONVERTED,
    JITTED,
    ORIGINAL,
    REFERENCE,
    Array,
    Call,
    Measured,
    Observe,
    Run,
    Walked,
)
from amprewrite.verify.blame import Blame
from amprewrite.verify.bounds import expected_error
from amprewrite.verify.metrics import cosine, errors, joint_error, relative_l2
from amprewrite.verify.report import GradientError, OutputError, Report
from amprewrite.verify.text import failure_text

REFERENCES = ("float64", "float32")
"""Dtypes in which a reference may be run."""


NOISE = 2.0
"""Multiple of the original's own error that nobody can ask a conversion to be below."""


class Side(Protocol):
    """What a framework offers: it runs models and hands back arrays."""

    def measure(self, original: Any, converted: Any, call: Call) -> Measured:
        """Run both models and what could be used instead."""
        ...

    def walk(
        self, original: Any, converted: Any, call: Call, observe: Observe
    ) -> Walked:
        """Run both models op by op."""
        ...


def verify(
    side: Side, original: Any, converted: Any, call: Call, rtol: float | None = None
) -> Report:
    """Return a report on how far ``converted`` is from ``original``.

    Args:
        side: The framework of both.
        original: The model.
        converted: Its converted form, or any callable of the same signature.
        call: Arguments, reference dtype, whether gradients are compared.
        rtol: Bound on the relative L2 error of every output.

    Raises:
        UnsupportedError: The reference dtype is neither float64 nor float32.
        VerifyError: ``rtol`` is given and an output is worse, or is not finite where
            the reference is; or the outputs differ in structure.
    """
    if call.reference not in REFERENCES:
        msg = f"unknown reference {call.reference!r}; want {' or '.join(REFERENCES)}"
        raise UnsupportedError(msg)
    measured = side.measure(original, converted, call)
    reference, found = measured.runs[REFERENCE], measured.runs[CONVERTED]
    jitted = measured.runs.get(JITTED)
    for run in (found, jitted or found):
        _check_alike(reference, run)
    plan = measured.plan
    blame = Blame({} if plan is None else plan.by_op)
    same = replace(call, reference=measured.reference)
    walked = side.walk(original, converted, same, blame)
    notes = (*measured.notes, *_differences(reference, found), *walked.notes)
    expected = expected_error(plan, walked.graph)
    if expected is not None and ORIGINAL in measured.runs:
        floor = _error(measured.runs[ORIGINAL].outputs, reference.outputs)
        expected = max(expected, NOISE * floor)
    report = Report(
        reference=measured.reference,
        low=measured.low,
        error=_error(found.outputs, reference.outputs),
        bound=expected if rtol is None else rtol,
        outputs=tuple(_output_errors(reference, found)),
        jitted=tuple(_output_errors(reference, jitted)) if jitted else (),
        baselines=dict(_baselines(measured, "outputs")),
        failures=dict(measured.failures),
        ops=blame.errors if walked.reference else (),
        gradients=tuple(_gradient_errors(reference, found)),
        gradient_baselines=dict(_gradient_totals(measured)),
        notes=notes,
    )
    if rtol is not None and not report.ok:
        raise VerifyError(failure_text(report, rtol), report)
    return report


def _check_alike(reference: Run, found: Run) -> None:
    """Make sure that both runs gave the same structure.

    Raises:
        VerifyError: Names the first output that differs.
    """
    have, want = _shapes(found), _shapes(reference)
    for name in (*want, *have):
        if have.get(name) != want.get(name):
            found_text, want_text = (x.get(name, "none") for x in (have, want))
            msg = (
                f"output {name}: the converted model gives {found_text}, the original "
                f"{want_text}; want the same structure and shapes"
            )
            raise VerifyError(msg)


def _shapes(run: Run) -> dict[str, str]:
    floats = {name: f"float{list(x.shape)}" for name, x in run.outputs.items()}
    return floats | {
        name: f"{x.dtype}{list(x.shape)}" for name, x in run.others.items()
    }


def _differences(reference: Run, found: Run) -> Iterator[str]:
    """Yield a line for each output of integers or booleans that differs."""
    for name, wanted in reference.others.items():
        count = int(np.count_nonzero(found.others[name] != wanted))
        if count:
            yield f"output {name}: {count} of {wanted.size} elements differ"


def _error(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    return joint_error((found[name], wanted[name]) for name in wanted if name in found)


def _output_errors(reference: Run, found: Run) -> Iterator[OutputError]:
    for name, wanted in reference.outputs.items():
        measured = asdict(errors(found.outputs[name], wanted))
        yield OutputError(name, found.dtypes[name], wanted.shape, **measured)


def _baselines(measured: Measured, part: str) -> Iterator[tuple[str, float]]:
    """Yield the error of each baseline, in its outputs or its gradients."""
    wanted = getattr(measured.runs[REFERENCE], part)
    for name, run in measured.runs.items():
        if name not in (REFERENCE, CONVERTED):
            yield name, _error(getattr(run, part), wanted)


def _gradient_errors(reference: Run, found: Run) -> Iterator[GradientError]:
    for name, wanted in reference.gradients.items():
        if name in found.gradients:
            held = found.gradients[name]
            yield GradientError(name, relative_l2(held, wanted), cosine(held, wanted))


def _gradient_totals(measured: Measured) -> Iterator[tuple[str, float]]:
    wanted = measured.runs[REFERENCE].gradients
    if wanted:
        yield CONVERTED, _error(measured.runs[CONVERTED].gradients, wanted)
        yield from _baselines(measured, "gradients")
