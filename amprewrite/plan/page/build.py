"""Page of a plan."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amprewrite.page.histograms import Exponents, as_histograms
from amprewrite.page.model import Page
from amprewrite.plan.model import Plan
from amprewrite.plan.page.graph import plan_graph
from amprewrite.plan.page.tables import (
    Extra,
    casts_table,
    difference_tables,
    differing_ops,
    lowerings_table,
    ops_table,
    plan_facts,
    shares,
)


@dataclass(frozen=True)
class Found:
    """Measurements of a plan's ops, to be shown with them.

    Attributes:
        columns: Further columns of the table of ops.
        shares: Share of each op in the error, by name; None if unknown.
        faults: Ops to draw attention to.
    """

    columns: Sequence[Extra] = ()
    shares: Mapping[str, float] | None = None
    faults: Collection[str] = ()


def plan_page(
    plan: Plan,
    *,
    title: str = "",
    against: Plan | None = None,
    exponents: Iterable[Exponents] = (),
    found: Found | None = None,
) -> Page:
    """Return the page of a plan.

    Args:
        plan: The plan.
        title: Its title; by default names the policy.
        against: Another plan for the same model, to be compared with.
        exponents: Histograms of exponents to draw.
        found: Measurements of its ops.

    Raises:
        PlanMismatchError: The plan's program cannot be read.
    """
    known = found or Found()
    marked = set(known.faults)
    if against is not None:
        marked |= differing_ops(plan, against)
    return Page(
        title=title or f"Plan {plan.policy}",
        lead=f"policy {plan.policy}, placement {plan.placement}; {plan.captured}",
        facts=tuple(plan_facts(plan)),
        shares=shares(plan),
        notes=plan.warnings,
        before=() if against is None else tuple(difference_tables(plan, against)),
        graph=plan_graph(plan, known.shares, marked),
        tables=(
            ops_table(plan, known.columns),
            casts_table(plan),
            *lowerings_table(plan),
        ),
        histograms=as_histograms(exponents),
    )
