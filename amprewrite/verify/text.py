"""A report as lines of text: its problems, if there are any, and its numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amprewrite.measure import CONVERTED, JITTED
from amprewrite.plan.lines import lowering_line
from amprewrite.verify.rows import worst

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
    yield from _gradient_problems(report)
    faults = [op for op in report.ops if op.is_fault]
    yield from (op.fault for op in worst(faults, len(faults)))
    for row in report.discrete:
        if row.is_violation:
            yield f"{row.describe(report.reference)}; {TIES}"


def _gradient_problems(report: "Report") -> Iterator[str]:
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


WORST = 3
"""Number of ops that a message names."""


def summary_lines(report: "Report") -> Iterator[str]:
    """Yield the error, the baselines, the worst output, the worst ops, the notes."""
    against = f"error {number(report.error)} against {report.reference}"
    bound = "" if report.bound is None else f", bound {number(report.bound)}"
    found = report.problems
    known = (
        "" if report.predicted is None else f", {number(report.predicted)} predicted"
    )
    yield f"{against}{known}{bound}: {'NOT OK' if found else 'ok'}"
    yield from (f"  {problem}" for problem in found)
    for name, error in report.baselines.items():
        yield f"  {name}: {number(error)}"
    for name, message in report.failures.items():
        yield f"  {name}: not run ({message})"
    if report.plan is not None and report.plan.lowerings:
        did = lowering_line(report.plan.lowerings)
        yield f"calls run lowered: {did}; ops are compared as planned"
    if report.outputs:
        output = max(report.outputs, key=lambda found: found.relative_l2)
        yield (
            f"worst of {len(report.outputs)} outputs: {output.name}: error "
            f"{number(output.relative_l2)}, {number(output.sqnr_db)} dB, "
            f"{output.nonfinite_new} new non-finite elements"
        )
    for row in report.discrete:
        if not row.is_violation:
            yield row.describe(report.reference)
    yield from _gradient_lines(report)
    for op in report.worst(WORST):
        yield f"  {op}"
    yield from (f"note: {note}" for note in report.notes)


def _gradient_lines(report: "Report") -> Iterator[str]:
    """Yield the error of all gradients, the worst of them, and the zero ones."""
    if not report.gradients:
        return
    total = number(report.gradient_baselines.get("converted"))
    sized = [row for row in report.gradients if not row.zero]
    zeros = [row for row in report.gradients if row.zero]
    worst = max(sized or zeros, key=lambda row: row.relative_l2)
    yield (
        f"gradients: error {total}; worst of {len(report.gradients)}: "
        f"{worst.name}: {number(worst.relative_l2)}"
    )
    if zeros:
        largest = max(zeros, key=lambda row: row.relative_l2)
        yield (
            f"  {len(zeros)} of them are zero but for rounding; by their size against "
            f"all gradients the largest is {largest.name}: "
            f"{number(largest.relative_l2)}"
        )


def failure_text(report: "Report") -> str:
    """Return all problems, the baselines, and the ops to look at."""
    first, *rest = report.problems
    others = ", ".join(f"{k} {number(x)}" for k, x in report.baselines.items())
    head = f"{first} ({others})" if others else first
    if report.violations:
        head = f"{head}; allow more with rtol="
    return "\n  ".join([head, *rest, *map(str, report.worst(WORST)), *_advice(report)])


def _advice(report: "Report") -> Iterator[str]:
    """Yield advice on the ops of a report with the models behind it."""
    if report.live is None or not report.violations:
        return
    yield (
        "error.report.blame() measures which ops cause it, error.report.fix(target) "
        "gives the overrides that keep them in full precision"
    )
