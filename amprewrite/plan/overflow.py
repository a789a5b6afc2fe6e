"""What is said of a low dtype whose range the values of a model leave."""

from amprewrite.dtypes import format_of
from amprewrite.plan.model import Decision, Plan


def is_narrow(plan: Plan) -> bool:
    """Return whether a plan lowers to a dtype of a smaller range than its full one.

    float16 ends at 65504; bfloat16 has the exponents of float32, and is not looked at.
    """
    if not plan.low or not plan.lowered:
        return False
    low, full = format_of(plan.low).max, format_of(plan.full).max
    return low < full / 2**16


def overflow_warning(plan: Plan, decision: Decision | None) -> str:
    """Return the line that says which op left the range, and what to do.

    Args:
        plan: The plan.
        decision: That of the first op whose result is not finite; None if not known.
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
