"""Page of a report: its contents, tables and figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, isfinite

from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import Cell, Chart, Column, Fact, Line, Page, Table
from amprewrite.plan import Plan
from amprewrite.plan.page import plan_page
from amprewrite.verify.blame import Blame
from amprewrite.verify.report import Report
from amprewrite.verify.text import number

WORST = 6
"""Ops in the table of those that matter most."""

_SHARE = Column("share", "share", "Share of its roundings in the predicted error")
_OWN = Column("own error", "error", "Error that it makes itself, relative")
_ACCUMULATED = Column("accumulated", "error", "Error of its result, relative")
_JUMP = Column("jump", "error", "Accumulated error minus the error that arrived")
_HEADROOM = Column(
    "headroom", "count", "Octaves from its largest value to the format's", hidden=True
)
_UNDERFLOW = Column(
    "underflow", "share", "Elements that become zero or subnormal", hidden=True
)
_LOST = Column("not finite", "count", "Elements not finite that are in the reference")


def report_facts(report: Report) -> Iterator[Fact]:
    """Yield the figures of the summary."""
    notes = ["no bound" if report.bound is None else f"bound {number(report.bound)}"]
    if report.predicted is not None:
        notes.append(f"predicted {number(report.predicted)}")
    tone = "" if report.ok else "bad"
    title = f"error against {report.reference}"
    yield Fact(title, number(report.error), ", ".join(notes), tone)
    for name, error in report.baselines.items():
        yield Fact(f"error of {name}", number(error))


def measured(report: Report) -> tuple[tuple[Column, Mapping[str, Cell]], ...]:
    """Return the measured columns of the table of ops, by the ops' names."""
    ops = report.ops
    if not ops:
        return ()
    own: dict[str, Cell] = {op.op: op.own for op in ops}
    columns: list[tuple[Column, Mapping[str, Cell]]] = [
        (_OWN, own),
        (_ACCUMULATED, {op.op: op.accumulated for op in ops}),
        (_JUMP, {op.op: op.jump for op in ops}),
        (_HEADROOM, {op.op: _octaves(op.headroom) for op in ops}),
        (_UNDERFLOW, {op.op: op.underflow for op in ops}),
    ]
    if any(op.share is not None for op in ops):
        columns.insert(0, (_SHARE, {op.op: op.share for op in ops}))
    if any(op.nonfinite for op in ops):
        columns.append((_LOST, {op.op: op.nonfinite for op in ops}))
    return tuple(columns)


def _octaves(headroom: float | None) -> int | None:
    return None if headroom is None or not isfinite(headroom) else floor(headroom)


def blame_table(blame: Blame) -> Table:
    """Return the ops that cause the error, and the share that restoring removes."""
    columns = (
        Column("op", "code"),
        Column("module", "path"),
        Column(
            "share", "share", "Share of the squared error that restoring it removes"
        ),
        Column("error without", "error", "Error of the outputs with it in full"),
        Column("more bytes", "bytes", "Read and written more, in full"),
        Column("computes", "dtype"),
        Column("source", "code"),
        Column("fault", "text", "Difference from the original's op beyond rounding"),
    )
    rows = tuple(
        (b.op, b.path, b.share, b.error, b.bytes, b.precision, b.source, b.fault)
        for b in blame
    )
    how = f"measured in {blame.runs} runs" if blame.measured else "predicted"
    lead = f"Ops that cause the error, by the part that restoring them removes; {how}."
    return Table("Blame", columns, rows, lead, "blame")


def worst_table(report: Report) -> Table:
    """Return the ops that matter most, the worst first."""
    known = any(op.share is not None for op in report.ops)
    columns = (
        Column("op", "code"),
        Column("module", "path"),
        *([_SHARE] if known else []),
        _OWN,
        _ACCUMULATED,
        Column("computes", "dtype"),
        Column("source", "code"),
    )
    rows = tuple(
        (
            op.op,
            op.path,
            *([op.share] if known else []),
            op.own,
            op.accumulated,
            op.precision,
            op.source,
        )
        for op in report.worst(WORST)
    )
    lead = "Faults first, then the ops by their share in the error of the outputs."
    return Table("Worst ops", columns, rows, lead, "worst")


def ops_table(report: Report) -> Table:
    """Return one row for each measured op, where no plan is known."""
    extras = measured(report)
    columns = (
        Column("op", "code"),
        Column("computes", "dtype"),
        *(column for column, _ in extras),
        Column("module", "path"),
        Column("source", "code"),
        Column("native", "code", hidden=True),
    )
    rows = tuple(
        (
            op.op,
            op.precision,
            *(cells.get(op.op) for _, cells in extras),
            op.path,
            op.source,
            op.native,
        )
        for op in report.ops
    )
    return Table("Ops", columns, rows, key="ops")


def result_tables(report: Report) -> Iterator[Table]:
    """Yield the errors of outputs and of gradients."""
    if report.outputs:
        rows = tuple(
            (o.name, o.dtype, o.relative_l2, o.max_abs, o.cosine, o.nonfinite_new)
            for o in report.outputs
        )
        columns = (
            Column("output", "code"),
            Column("dtype", "dtype"),
            Column("error", "error", "Relative error in the Euclidean norm"),
            Column("largest", "error", "Largest absolute difference"),
            Column("cosine", "error", "Cosine of the angle to the reference"),
            Column("not finite", "count", "New elements that are not finite"),
        )
        yield Table("Outputs", columns, rows, key="outputs")
    if report.gradients:
        rows = tuple((g.name, g.relative_l2, g.cosine) for g in report.gradients)
        columns = (
            Column("parameter", "code"),
            Column("error", "error", "Relative error in the Euclidean norm"),
            Column("cosine", "error", "Cosine of the angle to the reference"),
        )
        yield Table("Gradients", columns, rows, key="gradients", sort="error")


def depth_chart(report: Report) -> Sequence[Chart]:
    """Return the errors of the ops in program order; nothing without any."""
    ops = report.ops
    if not ops:
        return ()
    dtypes = sorted({op.precision for op in ops if op.own})
    own = (
        Line(
            f"own, {dtype}",
            tuple(op.own or None if op.precision == dtype else None for op in ops),
            points=True,
            dtype=dtype,
        )
        for dtype in dtypes
    )
    lines = (Line("accumulated", tuple(op.accumulated for op in ops)), *own)
    chart = Chart(
        "Error by depth",
        tuple(op.op for op in ops),
        lines,
        "op, in program order",
        "relative error",
        "Where the line jumps, an op adds error; a point is the error that an op makes "
        "by itself. A click selects the op.",
    )
    return (chart,)


def report_page(
    report: Report,
    plan: Plan | None = None,
    *,
    title: str = "",
    against: Plan | None = None,
    exponents: Iterable[Exponents] = (),
    blame: Blame | None = None,
) -> Page:
    """Return the page of a report.

    Args:
        report: The report.
        plan: The plan of the converted model, for the graph and the casts; None leaves
            them out.
        title: Its title; by default names the policy.
        against: Another plan for the same model, to be compared with ``plan``.
        exponents: Histograms of exponents to draw.
        blame: Ops that cause the error, shown first; None leaves them out.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    worst = (worst_table(report),) if report.ops else ()
    if blame is not None:
        worst = (blame_table(blame), *worst)
    facts = tuple(report_facts(report))
    found = Page(
        title=title or "Report of a conversion",
        lead=f"low precision {report.low or 'none'}, reference {report.reference}",
        facts=facts,
        notes=(*report.problems, *report.notes),
        before=worst,
        tables=(ops_table(report), *result_tables(report)),
        charts=tuple(depth_chart(report)),
        histograms=as_histograms(exponents),
    )
    if plan is not None:
        known = {op.op: op.share for op in report.ops if op.share is not None}
        base = plan_page(
            plan,
            against=against,
            columns=measured(report),
            error_shares=known or None,
            faults={op.op for op in report.ops if op.is_fault or op.nonfinite},
        )
        found = replace(
            found,
            title=title or f"Conversion by policy {plan.policy}",
            lead=base.lead,
            facts=(*facts, *base.facts[:3]),
            shares=base.shares,
            notes=(*found.notes, *base.notes),
            before=(*worst, *base.before),
            graph=base.graph,
            tables=(*base.tables, *found.tables[1:]),
        )
    verdict = "ok: within the bound" if report.ok else "not ok"
    if report.ok and report.bound is None and not report.bounds:
        verdict = "ok: nothing found, no bound known"
    return replace(found, verdict=verdict, tone="good" if report.ok else "bad")
