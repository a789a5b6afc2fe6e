"""A report as lines of text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amprewrite.verify.report import Report

WORST = 3
"""Ops that a message names."""


def number(value: float | None) -> str:
    """Return a measured number with three digits."""
    return "" if value is None else f"{value:.3g}"


def summary_lines(report: "Report") -> Iterator[str]:
    """Yield the error, the baselines, the worst output, the worst ops, the notes."""
    against = f"error {number(report.error)} against {report.reference}"
    bound = "" if report.bound is None else f", bound {number(report.bound)}"
    yield f"{against}{bound}: {'ok' if report.ok else 'NOT OK'}"
    for name, error in report.baselines.items():
        yield f"  {name}: {number(error)}"
    for name, message in report.failures.items():
        yield f"  {name}: not run ({message})"
    if report.outputs:
        output = max(report.outputs, key=lambda found: found.relative_l2)
        yield (
            f"worst of {len(report.outputs)} outputs: {output.name}: error "
            f"{number(output.relative_l2)}, {number(output.sqnr_db)} dB, "
            f"{output.nonfinite_new} new non-finite elements"
        )
    if report.gradients:
        gradient = max(report.gradients, key=lambda found: found.relative_l2)
        total = number(report.gradient_baselines.get("converted"))
        yield (
            f"gradients: error {total}; worst of {len(report.gradients)}: "
            f"{gradient.name}: {number(gradient.relative_l2)}"
        )
    for op in report.worst(WORST):
        yield f"  {op}"
    yield from (f"note: {note}" for note in report.notes)


def failure_text(report: "Report", rtol: float) -> str:
    """Return what is wrong with the worst output, and the ops to look at."""
    output = report.violations[0]
    found = f"relative error {number(output.relative_l2)}"
    if output.nonfinite_new:
        found = f"{output.nonfinite_new} elements that are finite in the reference"
        found += f" are not ({number(output.relative_l2)})"
    jitted = not any(output is row for row in report.outputs)
    others = ", ".join(f"{k} {number(x)}" for k, x in report.baselines.items())
    head = (
        f"output {output.name}{' of the jitted function' if jitted else ''}: {found}; "
        f"want at most {number(rtol)} against {report.reference} ({others}); deny the "
        f"ops with the largest own errors, or allow more with rtol="
    )
    return "\n  ".join([head, *map(str, report.worst(WORST))])
