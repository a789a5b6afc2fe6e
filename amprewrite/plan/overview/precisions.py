"""Precisions of ops that belong together, as a few words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from amprewrite.dtypes import is_float, short_name

if TYPE_CHECKING:
    from amprewrite.plan.model import Decision, Plan


def makes_floats(decision: "Decision") -> bool:
    """Return whether an op makes real floats: truth values and indices have no say."""
    return any(map(is_float, decision.results or (decision.precision,)))


def precisions_text(plan: "Plan", decisions: Iterable["Decision"]) -> str:
    """Return ``full``, a dtype, or the number of ops in each: ``8 bf16, 2 f32``."""
    found = Counter(d.precision for d in decisions if makes_floats(d))
    if len(found) == 1:
        (dtype,) = found
        return "full" if plan.low and dtype == plan.full else short_name(dtype)
    return counts_text(plan, found)


def counts_text(plan: "Plan", found: Counter[str]) -> str:
    """Return the number of ops in each dtype, the low one first."""
    first = (plan.low, plan.full)
    order = sorted(found, key=lambda d: first.index(d) if d in first else len(first))
    return ", ".join(f"{found[dtype]:,} {short_name(dtype)}" for dtype in order)


def float_counts(decisions: Iterable["Decision"]) -> Counter[str]:
    """Return the number of ops that make floats by the dtype they compute in."""
    return Counter(d.precision for d in decisions if makes_floats(d))


def plural(count: int, noun: str) -> str:
    """Return ``1 op`` or ``7 ops``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    parts = [*names[:most], *more]
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
