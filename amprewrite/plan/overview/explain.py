"""Reasons for an op, a module or a compound, in sentences with lines of source."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from amprewrite.dtypes import short_name
from amprewrite.errors import PlanMismatchError
from amprewrite.plan.overview.compounds import Compound
from amprewrite.plan.overview.lines import compound_line
from amprewrite.plan.overview.precisions import (
    counts_text,
    float_counts,
    listed,
    makes_floats,
    plural,
)

if TYPE_CHECKING:
    from amprewrite.plan.model import Cast, Decision, Plan

_OPERAND = re.compile(r"^%\S+")

MOST_REASONS = 12
"""Reasons that the explanation of a module has, those of the most ops first."""


def explain(plan: "Plan", name: str) -> Iterator[str]:
    """Yield the reasons for a module or a compound.

    Args:
        plan: The plan.
        name: A compound (``softmax``), one call of it (``softmax#3``), or a module
            path.

    Raises:
        PlanMismatchError: The plan has nothing of that name.
    """
    compounds = plan.compounds
    calls = [c for c in compounds if name in (c.name, c.call)]
    if calls:
        return _of_compound(plan, calls)
    inside = [d for d in plan.decisions if f"{d.path}.".startswith(f"{name}.")]
    if name and inside:
        return _of_module(plan, name, inside)
    raise PlanMismatchError(_unknown(plan, name, compounds))


def because(plan: "Plan", found: "Decision") -> str:
    """Return the path of causes as a sentence: the next reads the op, and so on."""
    order = {decision.op: index for index, decision in enumerate(plan.decisions)}
    parts: list[str] = []
    before, it = found.op, "it"
    for cause in found.causes:
        decision = plan.by_op.get(cause)
        place = f" ({decision.source})" if decision and decision.source else ""
        reads = order.get(cause, len(order)) > order[before]
        parts.append(
            f"{cause}{place} reads {it}" if reads else f"{it} reads {cause}{place}"
        )
        before, it = (cause, "that") if decision else (before, it)
    return ", and ".join(parts)


def _of_compound(plan: "Plan", calls: Sequence[Compound]) -> Iterator[str]:
    """Yield the precisions, places and reasons of the calls of one kind."""
    yield compound_line(plan, calls)
    places = [" ".join(filter(None, (call.path, call.source))) for call in calls]
    if known := list(dict.fromkeys(filter(None, places))):
        yield f"  at       {listed(known, 6)}"
    ops = [decision for call in calls for decision in call.ops]
    yield from _reasons(plan, ops)


def _of_module(plan: "Plan", path: str, ops: "list[Decision]") -> Iterator[str]:
    """Yield the precisions, compounds, reasons and casts of a module."""
    counts = counts_text(plan, float_counts(ops)) or plural(len(ops), "op")
    named = {decision.op for decision in ops}
    casts = [c for c in plan.runtime_casts if f"{c.path}.".startswith(f"{path}.")]
    yield f"{path}: {counts}, {plural(len(casts), 'cast')} at run time"
    kinds: dict[str, list[Compound]] = {}
    for compound in plan.compounds:
        if compound.ops[0].op in named:
            kinds.setdefault(compound.name, []).append(compound)
    yield from (f"  {compound_line(plan, calls)}" for calls in kinds.values())
    yield from _reasons(plan, ops)
    yield from _casts(casts)


def _reasons(plan: "Plan", ops: "Iterable[Decision]") -> Iterator[str]:
    """Yield one sentence for the ops that run in one precision for one reason."""
    groups: dict[tuple[str, str], list[Decision]] = {}
    for decision in filter(makes_floats, ops):
        key = decision.precision, _in_general(plan, decision)
        groups.setdefault(key, []).append(decision)
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (precision, why), found in ranked[:MOST_REASONS]:
        names = Counter(d.canonical for d in found)
        said = [f"{n} {name}" if n > 1 else name for name, n in names.items()]
        first = found[0]
        ends = {d.causes[-1:] for d in found}
        one = first.causes and len(ends) == 1
        chain = f", since {because(plan, first)}" if one else ""
        places = dict.fromkeys(d.source for d in found if d.source)
        place = f" ({listed(tuple(places), 2)})" if places else ""
        yield f"  {short_name(precision):8} {listed(said, 4)}{place}: {why}{chain}"
    if len(ranked) > MOST_REASONS:
        yield f"  and {plural(len(ranked) - MOST_REASONS, 'more reason')}"


def _in_general(plan: "Plan", decision: "Decision") -> str:
    """Return the reason for an op with the kinds of other ops for their names."""
    words = _OPERAND.sub("an operand", decision.why).split(" ")
    named = (plan.by_op[w].canonical if w in plan.by_op else w for w in words)
    return " ".join(named)


def _casts(casts: "Sequence[Cast]") -> Iterator[str]:
    """Yield one line for each cast, those that move the most bytes first."""
    ranked = sorted(casts, key=lambda cast: -cast.bytes)
    for cast in ranked[:MOST_REASONS]:
        dtypes = f"{short_name(cast.from_dtype)} -> {short_name(cast.to_dtype)}"
        readers = listed(cast.consumers)
        place = f" ({cast.source})" if cast.source else ""
        yield f"  cast     %{cast.value} {dtypes} for {readers}{place}"
    if len(ranked) > MOST_REASONS:
        yield f"  and {plural(len(ranked) - MOST_REASONS, 'more cast')}"


def _unknown(plan: "Plan", name: str, compounds: Iterable[Compound]) -> str:
    paths = [decision.path for decision in plan.decisions if decision.path]
    names = dict.fromkeys((*(c.name for c in compounds), *plan.by_op, *paths))
    inside = [one for one in names if name in one] if name else []
    near = inside[:5] or get_close_matches(name, names, n=3)
    hint = f"; similar: {', '.join(near)}" if near else ""
    return (
        f"plan has no op {name!r} among {len(plan.by_op)}, and no module or compound "
        f"of that name{hint}"
    )
