"""The warning about values of a model beyond the range of its low dtype."""

from amprewrite.dtypes import format_of
from amprewrite.plan.model import Decision, Plan


def is_narrow(plan: Plan) -> bool:
    """Return whether a plan lowers to a dtype with a smaller range than its full one.

    float16 ends at 65504; bfloat16 has the exponents of float32, so it is not narrow.
    """
    if not plan.low or not plan.lowered:
        return False
    low, full = format_of(plan.low).max, format_of(plan.full).max
    return low < full / 2**16


def overflow_warning(plan: Plan, decision: Decision | None) -> str:
    """Return the warning that names the op that overflowed, and remedies.

    Args:
        plan: The plan.
        decision: Decision about the first op with a non-finite result; None if unknown.
    """
    limit = f"{format_of(plan.low).max:g}"
    where = "the first op is not known"
    deny = "deny the op"
    if decision is not None:
        place = ", ".join(part for part in (decision.path, decision.source) if part)
        found = f"{decision.op} ({place})" if place else decision.op
        where = f"the first is {found}"
        rule = f'{{"op_name": "{decision.op}", "class": "deny"}}'
        deny = f"deny it, overrides=[{rule}]"
    return (
        f"outputs on args are not finite in {plan.low}, which ends at {limit}, and "
        f"finite in {plan.full}: {where}; pass tolerance=, {deny}, or use bf16"
    )
