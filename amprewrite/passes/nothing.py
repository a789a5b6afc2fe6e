"""The reason why a plan lowers nothing, for its warning."""

from collections import Counter
from collections.abc import Collection

from amprewrite.ir import ProgramGraph
from amprewrite.plan import DEFAULT_PRICES, Decision, Plan
from amprewrite.policy import Matcher, OpClass

REASONS = 3
"""Number of reasons that are named, the most common first."""


def why_nothing(
    graph: ProgramGraph, plan: Plan, matcher: Matcher, exact: Collection[str] = ()
) -> str:
    """Return the reason why ``plan`` lowers no op of ``graph``.

    Args:
        graph: The program.
        plan: Its plan, under a policy with a low dtype.
        matcher: The policy and overrides.
        exact: Ops that make an exact argument, which no price lowers.
    """
    floats = {v.dtype for v in graph.values.values() if v.is_float}
    if floats and plan.full not in floats:
        return f"the model is already in {', '.join(sorted(floats))}"
    free = {d.op for d in plan.decisions if d.op_class == OpClass.ALLOW}
    if not free.issubset(exact):
        by = f" by prices {plan.prices}" if plan.prices != DEFAULT_PRICES else ""
        return f"it would cost more than it saves{by}, or is not safe"
    pairs = zip(graph.ops, plan.decisions, strict=True)
    allowed = [d for op, d in pairs if matcher.listed(op).op_class is OpClass.ALLOW]
    if not allowed:
        return f"no allow op of dtype {plan.full} was found"
    reasons = Counter(map(_said, allowed))
    said = "; ".join(reason for reason, _ in reasons.most_common(REASONS))
    more = "; ..." if len(reasons) > REASONS else ""
    return f"the policy allows {len(allowed)} of them, which are kept: {said}{more}"


def _said(decision: Decision) -> str:
    """Return the reason that keeps an op full, with the key of its rule."""
    return (
        f"{decision.rule}, {decision.why}" if decision.reason.is_rule else decision.why
    )
