"""A report as lines of text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amprewrite.plan.lines import lowering_line
from amprewrite.verify.verdict import number

if TYPE_CHECKING:
    from amprewrite.verify.report import Report

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
