"""Join the plans of one model that was captured as several graphs."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain

from amprewrite.plan.fields import Lowering, Recompute
from amprewrite.plan.model import NOTHING_LOWERED, OUTPUT, Cast, Cost, Decision, Plan


def join_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plans of several graphs as one; op names get the graph's number.

    Args:
        plans: At least one plan; a single one is returned as it is.
    """
    if len(plans) == 1:
        return plans[0]
    parts = [_numbered(plan, f"graph{index}.") for index, plan in enumerate(plans)]
    return replace(
        parts[0],
        captured=f"{parts[0].captured}, {len(parts)} graphs",
        decisions=tuple(chain.from_iterable(plan.decisions for plan in parts)),
        casts=tuple(chain.from_iterable(plan.casts for plan in parts)),
        outputs=tuple(chain.from_iterable(plan.outputs for plan in parts)),
        program=tuple(chain.from_iterable(plan.program for plan in parts)),
        storage=tuple(chain.from_iterable(plan.storage for plan in parts)),
        warnings=_warnings(parts),
        cost=_sum(plan.cost for plan in parts),
        recompute=Recompute.joined(plan.recompute for plan in parts),
        gradient_error=None,
        lowerings=tuple(chain.from_iterable(plan.lowerings for plan in parts)),
    )


def _warnings(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return each warning once; "nothing lowered" only if it holds for all plans."""
    lines = dict.fromkeys(chain.from_iterable(plan.warnings for plan in plans))
    some = any(plan.lowered for plan in plans)
    return tuple(x for x in lines if not (some and x.startswith(NOTHING_LOWERED)))


def _sum(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs; its lower bound is known only if each one's is."""
    found = list(costs)
    rows = [[getattr(cost, f.name) for f in fields(Cost)[:-1]] for cost in found]
    bounds = [cost.lower_bound for cost in found if cost.lower_bound is not None]
    total = Cost(*(sum(column) for column in zip(*rows, strict=True)))
    return (
        replace(total, lower_bound=sum(bounds)) if len(bounds) == len(found) else total
    )


def _numbered(plan: Plan, prefix: str) -> Plan:
    return replace(
        plan,
        decisions=tuple(_decision(decision, prefix) for decision in plan.decisions),
        casts=tuple(_cast(cast, prefix) for cast in plan.casts),
        storage=tuple((prefix + value, dtype) for value, dtype in plan.storage),
        recompute=plan.recompute.numbered(prefix),
        lowerings=tuple(_lowering(found, prefix) for found in plan.lowerings),
    )


def _decision(decision: Decision, prefix: str) -> Decision:
    causes = tuple(c if c == OUTPUT else prefix + c for c in decision.causes)
    calls = tuple(call.replace("#", f"#{prefix}", 1) for call in decision.calls)
    return replace(decision, op=prefix + decision.op, causes=causes, calls=calls)


def _lowering(found: Lowering, prefix: str) -> Lowering:
    return replace(found, ops=tuple(prefix + op for op in found.ops))


def _cast(cast: Cast, prefix: str) -> Cast:
    uses = tuple((op if op == OUTPUT else prefix + op, i) for op, i in cast.uses)
    producer = prefix + cast.producer if cast.producer else ""
    return replace(cast, value=prefix + cast.value, producer=producer, uses=uses)
