"""Page of a report."""

from collections.abc import Iterable
from dataclasses import replace

from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import Graph, Page
from amprewrite.plan import Plan
from amprewrite.plan.page.build import plan_page
from amprewrite.plan.page.graph import plan_graph
from amprewrite.plan.page.tables import differing_ops
from amprewrite.plan.page.tables import ops_table as plan_ops
from amprewrite.verify.page.tables import (
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
) -> Page:
    """Return the page of a report.

    Args:
        report: The report.
        plan: The plan of the converted model, for the graph and the casts; None leaves
            them out.
        title: Its title; by default names the policy.
        against: Another plan for the same model, to be compared with ``plan``.
        exponents: Histograms of exponents to draw.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    worst = (worst_table(report),) if report.ops else ()
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
        base = plan_page(plan, against=against)
        ops, *others = base.tables
        ops = plan_ops(plan, measured(report))
        found = replace(
            found,
            title=title or f"Conversion by policy {plan.policy}",
            lead=base.lead,
            facts=(*facts, *base.facts[:3]),
            shares=base.shares,
            notes=(*found.notes, *base.notes),
            before=(*worst, *base.before),
            graph=_graph(report, plan, against),
            tables=(ops, *others, *found.tables[1:]),
        )
    verdict = "ok: within the bound" if report.ok else "not ok"
    if report.ok and report.bound is None and not report.bounds:
        verdict = "ok: nothing found, no bound known"
    return replace(found, verdict=verdict, tone="good" if report.ok else "bad")


def _graph(report: Report, plan: Plan, against: Plan | None) -> Graph:
    """Return the graph of a plan with the shares and the faults of a report."""
    known = {op.op: op.share for op in report.ops if op.share is not None}
    faults = {op.op for op in report.ops if op.is_fault or op.nonfinite}
    if against is not None:
        faults |= differing_ops(plan, against)
    return plan_graph(plan, known or None, faults)
