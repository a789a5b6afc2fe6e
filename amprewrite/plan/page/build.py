"""Page of a plan."""

from collections.abc import Iterable

from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import Page
from amprewrite.plan.model import Plan
from amprewrite.plan.page.graph import plan_graph
from amprewrite.plan.page.tables import (
    casts_table,
    difference_tables,
    differing_ops,
    ops_table,
    plan_facts,
    shares,
)


def plan_page(
    plan: Plan,
    *,
    title: str = "",
    against: Plan | None = None,
    exponents: Iterable[Exponents] = (),
) -> Page:
    """Return the page of a plan.

    Args:
        plan: The plan.
        title: Its title; by default names the policy.
        against: Another plan for the same model, to be compared with.
        exponents: Histograms of exponents to draw.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    marked = frozenset[str]() if against is None else differing_ops(plan, against)
    return Page(
        title=title or f"Plan {plan.policy}",
        lead=f"policy {plan.policy}, placement {plan.placement}; {plan.captured}",
        facts=tuple(plan_facts(plan)),
        shares=shares(plan),
        notes=plan.warnings,
        before=() if against is None else tuple(difference_tables(plan, against)),
        graph=plan_graph(plan, marked=marked),
        tables=(ops_table(plan), casts_table(plan)),
        histograms=as_histograms(exponents),
    )
