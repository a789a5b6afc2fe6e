"""The problems of a converted model as lines of text; none if the report is ok."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amprewrite.measure import CONVERTED, JITTED
from amprewrite.verify.ops.op_errors import worst

if TYPE_CHECKING:
    from amprewrite.verify.report import Report
    from amprewrite.verify.rows import OutputError

TIES = "decisions that are nearly tied go either way by rounding"
"""Explanation of integers that differ."""


GRADIENTS = 5
"""Number of gradients that are named."""


def number(value: float | None) -> str:
    """Return a measured number with three digits."""
    return "" if value is None else f"{value:.3g}"


def violations(report: "Report") -> "tuple[OutputError, ...]":
    """Return the float outputs that are beyond a bound or not finite, worst first."""
    rows = (*report.outputs, *report.jitted)
    found = [x for x in rows if x.nonfinite_new or x.relative_l2 > report.bound_of(x)]
    return tuple(sorted(found, key=lambda output: -output.relative_l2))


def problems(report: "Report") -> Iterator[str]:
    """Yield a line for each problem, the outputs first."""
    if not report.compared:
        yield (
            f"no element of the outputs is finite in {report.reference}, so that "
            f"nothing was compared; give arguments on which some are"
        )
    for output in violations(report):
        yield _output_text(report, output)
    if report.together:
        runs = {CONVERTED: report.error, **report.baselines}
        beyond = [n for n in (CONVERTED, JITTED) if runs.get(n, 0.0) > report.limit]
        for name in beyond:
            yield (
                f"all outputs of {name} together: relative error {number(runs[name])}; "
                f"want at most {number(report.bound)} against {report.reference}"
            )
    yield from _gradient_lines(report)
    faults = [op for op in report.ops if op.is_fault]
    yield from (op.fault for op in worst(faults, len(faults)))
    for row in report.discrete:
        if row.is_violation:
            yield f"{row.describe(report.reference)}; {TIES}"


def _gradient_lines(report: "Report") -> Iterator[str]:
    """Yield a line for each of the worst gradients beyond a bound."""
    kinds = (report.gradients, ""), (report.jitted_gradients, " (jitted)")
    for rows, which in kinds:
        beyond = [row for row in rows if row.is_violation]
        beyond.sort(key=lambda row: -row.relative_l2)
        for row in beyond[:GRADIENTS]:
            yield f"{row.describe(report.reference)}{which}"
        if more := beyond[GRADIENTS:]:
            yield f"{len(more)} more gradients{which} are beyond their bounds"


def _output_text(report: "Report", output: "OutputError") -> str:
    found = f"relative error {number(output.relative_l2)}"
    if output.nonfinite_new:
        found = f"{output.nonfinite_new} elements that are finite in the reference"
        found += f" are not ({number(output.relative_l2)})"
    jitted = not any(output is row for row in report.outputs)
    name = f"output {output.name}{' of the jitted function' if jitted else ''}"
    bound = report.bound_of(output)
    wanted = "" if bound == float("inf") else f"; want at most {number(bound)}"
    return f"{name}: {found}{wanted} against {report.reference}"
