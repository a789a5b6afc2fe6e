"""Compare the runs of a model and build the report."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt

import numpy as np

from amprewrite.errors import UnsupportedError, VerifyError
from amprewrite.frameworks.base import Stepper
from amprewrite.ir import ProgramGraph
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Array, Call, Measured, Run, Walked
from amprewrite.plan import Plan
from amprewrite.plan.bounds import check_rtol
from amprewrite.verify.blame import Live
from amprewrite.verify.bounds import (
    LOW_BASELINES,
    expected_gradient,
    explained_error,
    explained_gradient,
    unit_roundoff,
)
from amprewrite.verify.metrics import cosine, errors, joint_error, norm, parts, ratio
from amprewrite.verify.own_errors import OwnErrors
from amprewrite.verify.report import Report
from amprewrite.verify.rows import DiscreteError, GradientError, OutputError
from amprewrite.verify.text import failure_text

Bounds = Callable[[float | None, float | None], float]
"""Bound on the error of a gradient, by those of a baseline and of the original."""

NOISE = 2.0**10
"""Noise level of gradients, in unit roundoffs of the reference.

Relative to the root mean square of all gradients, a reference gradient below it is
rounding itself: a key bias of BERT-base has 1e-17 in float64 where the others have
1e-3, about 50 unit roundoffs.
"""


def gradient_errors(
    runs: Mapping[str, Run], found: Run, reference: str, bound_of: Bounds
) -> Iterator[GradientError]:
    """Yield the error of the gradient of each parameter and input that ``found`` has.

    A gradient that is zero has no relative error: it is compared by its size against
    all gradients together.

    Args:
        runs: The reference among them, and the original if it was run.
        found: The run to compare.
        reference: Dtype of the reference.
        bound_of: Returns the bound on a gradient, by the error of the best baseline in
            low precision and by that of the original, None where they were not run.
    """
    wanted = runs[REFERENCE].gradients
    own = runs[ORIGINAL].gradients if ORIGINAL in runs else dict[str, Array]()
    lows = [runs[name].gradients for name in LOW_BASELINES if name in runs]
    typical = _root_mean_square(wanted)
    for name, exact in wanted.items():
        if name not in found.gradients:
            continue
        held = found.gradients[name]
        difference, size = parts(held, exact)
        others = typical * sqrt(exact.size)
        noise = NOISE * unit_roundoff(reference) * others
        floor = parts(own[name], exact)[0] if name in own else None
        zero = size <= max(noise, floor or 0.0)
        unit = others if zero else size
        best = min((parts(low[name], exact)[0] for low in lows), default=None)
        original = None if floor is None else ratio(floor, unit)
        yield GradientError(
            name=name,
            relative_l2=ratio(difference, unit),
            cosine=cosine(held, exact),
            zero=zero,
            is_input=name in found.inputs,
            original=original,
            bound=bound_of(None if best is None else ratio(best, unit), original),
        )


def _root_mean_square(arrays: Mapping[str, Array]) -> float:
    """Return the root mean square of all elements of all arrays."""
    count = sum(array.size for array in arrays.values())
    squares = sum(norm(array) ** 2 for array in arrays.values())
    return sqrt(squares / count) if count else 0.0


REFERENCES = ("float64", "float32")
"""Dtypes in which a reference may be run."""


def verify(
    framework: Stepper,
    original: object,
    converted: object,
    call: Call,
    rtol: float | None = None,
) -> Report:
    """Return a report on the errors of ``converted`` against ``original``.

    Args:
        framework: The framework of both.
        original: The model.
        converted: Its converted form, or any callable of the same signature.
        call: Arguments, reference dtype, whether gradients are compared.
        rtol: Bound on the relative L2 error of every output, and of every gradient.

    Raises:
        ToleranceError: ``rtol`` is no number, or below 0.
        UnsupportedError: The reference dtype is neither float64 nor float32.
        VerifyError: ``rtol`` is given and an output or a gradient is worse, or is not
            finite where the reference is; or the outputs differ in structure.
    """
    if call.reference not in REFERENCES:
        msg = f"unknown reference {call.reference!r}; want {' or '.join(REFERENCES)}"
        raise UnsupportedError(msg)
    check_rtol(rtol)
    observed = OwnErrors({})

    def steps(plan: Plan | None, dtype: str) -> Walked:
        observed.begin({} if plan is None else plan.by_op)
        same = replace(call, reference=dtype)
        return framework.walk(original, converted, same, observed)

    measured = framework.measure(original, converted, call, steps)
    reference, found = measured.runs[REFERENCE], measured.runs[CONVERTED]
    jitted = measured.runs.get(JITTED)
    for run in (found, jitted or found):
        _check_alike(reference, run)
    plan, walked = measured.plan, measured.walked or Walked()
    predicted, shares = _predicted(plan, walked)
    baselines = dict(_baselines(measured, "outputs"))
    expected = explained_error(predicted, baselines, plan, walked.graph)
    bound, together, bounds = _promised(rtol, plan, expected)
    exact = replace(reference, gradients={})  # a report does not hold on to them
    totals = dict(_gradient_totals(measured))
    bound_of = _gradient_bounds(plan, walked.graph, totals, rtol)
    live = Live(framework, original, converted, call, exact, walked.sensitivity)
    report = Report(
        reference=measured.reference,
        low=measured.low,
        error=_error(found.outputs, reference.outputs),
        bound=bound,
        outputs=tuple(_output_errors(reference, found)),
        jitted=tuple(_output_errors(reference, jitted)) if jitted else (),
        baselines=baselines,
        failures=dict(measured.failures),
        ops=observed.errors(shares, walked.graph) if walked.reference else (),
        gradients=tuple(
            gradient_errors(measured.runs, found, measured.reference, bound_of)
        ),
        jitted_gradients=(
            tuple(gradient_errors(measured.runs, jitted, measured.reference, bound_of))
            if jitted
            else ()
        ),
        gradient_baselines=totals,
        notes=(*measured.notes, *walked.notes),
        discrete=tuple(_discrete_errors(measured)),
        together=together,
        bounds=bounds,
        predicted=predicted,
        plan=plan,
        live=live if walked.reference else None,
    )
    if rtol is not None and not report.ok:
        raise VerifyError(failure_text(report), report)
    return report


def _predicted(
    plan: Plan | None, walked: Walked
) -> tuple[float | None, Mapping[str, float]]:
    """Return the predicted error of the outputs, and the share of each op in it."""
    known, graph = walked.sensitivity, walked.graph
    if plan is None or known is None or graph is None:
        return None, {}
    return known.shared(plan, graph), known.shares(plan, graph)


def _promised(
    rtol: float | None, plan: Plan | None, expected: float | None
) -> tuple[float | None, bool, Mapping[str, float]]:
    """Return the given bound, the tolerance of a plan, else the expected error.

    Returns:
        The bound, whether it is on all outputs together, and bounds on single ones.
    """
    if rtol is not None:
        return rtol, False, {}
    if plan is not None and plan.tolerance is not None:
        return plan.tolerance, True, {}
    if plan is not None and plan.tolerances:
        return None, False, dict(plan.tolerances)
    return expected, False, {}


def _gradient_bounds(
    plan: Plan | None,
    graph: ProgramGraph | None,
    totals: Mapping[str, float],
    rtol: float | None,
) -> Bounds:
    """Return the function that bounds each gradient; see :class:`GradientError`.

    Args:
        plan: The plan; None if the converted model has none.
        graph: The program, if it is known.
        totals: Error over all gradients, of the baselines.
        rtol: The bound, if one is given.
    """
    deep = expected_gradient(plan, graph)
    together = min((totals[n] for n in LOW_BASELINES if n in totals), default=0.0)
    in_16_bits = plan is None or bool(plan.lowered and not plan.quantised)

    def bound_of(baseline: float | None, original: float | None) -> float:
        if rtol is not None:
            return rtol
        best = max(baseline, together) if baseline is not None and in_16_bits else None
        return explained_gradient(best, original, deep)

    return bound_of


def _check_alike(reference: Run, found: Run) -> None:
    """Check that both runs gave the same structure.

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


def _discrete_errors(measured: Measured) -> Iterator[DiscreteError]:
    """Yield a row for each output of integers or booleans."""
    wanted = measured.runs[REFERENCE].others
    for name, exact in wanted.items():

        def differing(run: str) -> int:
            found = measured.runs.get(run)
            if found is None:
                return 0
            return int(np.count_nonzero(found.others[name] != exact))  # noqa: B023  # called in this turn

        dtype = measured.runs[CONVERTED].dtypes.get(name, str(exact.dtype))
        counts = map(differing, (CONVERTED, ORIGINAL, JITTED))
        yield DiscreteError(name, dtype, exact.size, *counts)


def _error(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    return joint_error((found[name], wanted[name]) for name in wanted if name in found)


def _output_errors(reference: Run, found: Run) -> Iterator[OutputError]:
    for name, wanted in reference.outputs.items():
        yield errors(name, found.dtypes[name], found.outputs[name], wanted)


def _baselines(measured: Measured, part: str) -> Iterator[tuple[str, float]]:
    """Yield the error of each baseline, in its outputs or its gradients."""
    wanted = getattr(measured.runs[REFERENCE], part)
    for name, run in measured.runs.items():
        if name not in (REFERENCE, CONVERTED):
            yield name, _error(getattr(run, part), wanted)


def _gradient_totals(measured: Measured) -> Iterator[tuple[str, float]]:
    wanted = measured.runs[REFERENCE].gradients
    if wanted:
        yield CONVERTED, _error(measured.runs[CONVERTED].gradients, wanted)
        yield from _baselines(measured, "gradients")
