"""Page of a report."""

from collections.abc import Iterable
from dataclasses import replace

from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import Page
from amprewrite.plan import Plan
from amprewrite.plan.page import Found, plan_page
from amprewrite.verify.culprits import Blame
from amprewrite.verify.page.tables import (
    blame_table,
    depth_chart,
    measured,
    ops_table,
    report_facts,
    result_tables,
    worst_table,
)
from amprewrite.verify.report import Report


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
        base = plan_page(plan, against=against, found=_found(report))
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


def _found(report: Report) -> Found:
    """Return the columns, shares and faults that a report has of a plan's ops."""
    known = {op.op: op.share for op in report.ops if op.share is not None}
    faults = {op.op for op in report.ops if op.is_fault or op.nonfinite}
    return Found(measured(report), known or None, faults)
