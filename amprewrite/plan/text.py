"""A plan as text: its summary, the reason for one op, the difference of two plans."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from amprewrite.dtypes import short_name
from amprewrite.errors import PlanMismatchError
from amprewrite.ops import line_key
from amprewrite.plan.compounds import Compound
from amprewrite.plan.lines import (
    cast_line,
    compound_line,
    compound_lines,
    counts_text,
    float_counts,
    layer_lines,
    listed,
    lowering_line,
    lowering_texts,
    makes_floats,
    plural,
)

if TYPE_CHECKING:
    from amprewrite.plan.fields import Recompute, TimedPlan
    from amprewrite.plan.model import Cast, Decision, Plan


DEFAULT_PRICES = "default"
"""Name of the built-in prices, used where nothing was measured on the device."""


def summary_lines(plan: "Plan") -> Iterator[str]:
    """Yield a plan in about ten lines: counts, compounds, layers, casts, warnings."""
    total = len(plan.decisions)
    low = len(plan.lowered)
    yield f"policy {plan.policy}, placement {plan.placement}; {plan.captured}"
    if plan.low:
        head = f"rewritten {low} of {total} ops to {plan.low}"
        yield head if low else f"{head}: NOTHING WAS LOWERED"
    if derived := len(plan.low_derivatives):
        yield (
            f"derivatives: {derived} contraction{'s' * (derived > 1)} that "
            f"run{'s' * (derived == 1)} in {plan.full}, differentiated in {plan.low}"
        )
    if quantised := plan.quantised:
        yield f"8 bits: {len(quantised)} contractions, {_formats(quantised[0])}"
    if (found := plan.gradient_error) is not None:
        yield (
            f"gradients: predicted relative error {found.error:.1e}, the worst "
            f"{found.worst:.1e} of {found.parameter}"
        )
    if plan.recompute:
        yield _recompute_line(plan.recompute)
    if plan.lowerings:
        yield f"calls run lowered: {lowering_line(plan.lowerings)}"
    if plan.timed:
        yield f"fastest of {len(plan.timed)}: {', '.join(map(_timed, plan.timed))}"
    classes = Counter(decision.op_class for decision in plan.decisions)
    yield "classes: " + ", ".join(f"{k} {n}" for k, n in sorted(classes.items()))
    weights = [cast for cast in plan.casts if cast.is_weight]
    run = plan.runtime_casts
    open_ended = any(isinstance(d, str) for cast in run for d in cast.shape)
    least = "at least " if open_ended else ""  # an extent that varies counts as one
    yield (
        f"casts: {len(run)} at run time ({least}{plan.cost.cast_bytes:,} bytes, "
        f"{sum(cast.is_weight for cast in run)} of weights), "
        f"{len(plan.casts) - len(run)} folded ({len(weights)} of weights in all)"
    )
    yield from _gap_line(plan)
    yield from cast_line(plan)
    yield from compound_lines(plan)
    yield from layer_lines(plan)
    if plan.prices != DEFAULT_PRICES:
        yield f"prices: {plan.prices}"
    if plan.unclassified:
        names = Counter(decision.native for decision in plan.unclassified)
        listed = ", ".join(f"{name} ({n})" for name, n in sorted(names.items()))
        first = min(plan.unclassified, key=lambda decision: decision.native)
        key = line_key(first.canonical, first.native)
        yield f"unclassified, run as traced: {listed}"
        yield f'  a line under [ops] of a policy gives a class: "{key}" = "promote"'
    yield from (f"warning: {warning}" for warning in plan.warnings)


def _gap_line(plan: "Plan") -> Iterator[str]:
    """Yield how far a plan within a tolerance may be above the cheapest."""
    gap = plan.cost.gap
    if plan.predicted_error is not None and gap is not None:
        far = f"at most {gap:.2%} above" if gap else "as few as"
        yield (
            f"cost: {plan.cost.total_bytes:,} bytes, {far} the cheapest plan with no "
            f"larger predicted error"
        )


def explain_lines(plan: "Plan", found: "Decision") -> Iterator[str]:
    """Yield the reason for the precision of one op, and the casts of its operands."""
    yield f"{found.op} = {found.canonical} ({found.native})"
    yield f"  at       {found.path or '(root)'}  {found.source}"
    yield f"  class    {found.op_class}, by {found.rule}"
    yield f"  computes {found.precision}"
    if found.accumulator and found.accumulator not in found.results:
        yield f"  sums in  {found.accumulator}, rounded to {', '.join(found.results)}"
    if found.derivative and found.derivative != found.precision:
        yield f"  derived  in {found.derivative}"
    if found.quantises:
        yield f"  8 bits   {_formats(found)}"
    if found.op in plan.recompute.ops:
        yield "  runs     again in the backward pass"
    yield f"  why      {found.why}"
    for lowering in plan.lowerings:
        if found.op in lowering.ops:
            yield f"  lowered  {lowering.what} ({lowering.name})"
    if found.causes:
        yield f"  because  {because(plan, found)}"
    for cast in plan.casts:
        if found.op in cast.consumers:
            how = f", folded ({cast.folding})" if cast.folded else ""
            dtypes = f"{cast.from_dtype} -> {cast.to_dtype}"
            yield f"  reads    %{cast.value} cast {dtypes}{how}"


def _recompute_line(found: "Recompute") -> str:
    """Return the kept bytes and recomputed ops of a training step as text."""
    return (
        f"recompute: {len(found.ops)} ops in {len(found.regions)} regions run again in "
        f"the backward pass; derivatives keep {found.bytes_kept:,} bytes, not "
        f"{found.bytes_before:,}"
    )


def _timed(found: "TimedPlan") -> str:
    """Return the time and the error of a candidate as text."""
    return f"{found.name} {found.seconds * 1e3:.3g} ms (error {found.error:.2g})"


def _formats(found: "Decision") -> str:
    """Return the 8-bit formats of a contraction as text."""
    named = {"operands": found.forward, "gradients": found.backward}
    said = ", ".join(f"{what} in {name}" for what, name in named.items() if name)
    kernel = f"; kernel {found.kernel}" if found.kernel else ""
    return f"{said}; scaling {found.scaling}{kernel}"


def diff_lines(one: "Plan", two: "Plan") -> Iterator[str]:
    """Yield one line for each op or cast in which two plans differ."""
    for name in dict.fromkeys((*one.by_op, *two.by_op)):
        a, b = one.by_op.get(name), two.by_op.get(name)
        if a is None or b is None:
            yield f"{name}: only in {'the second' if a is None else 'the first'} plan"
        elif (a.op_class, a.precision) != (b.op_class, b.precision):
            yield f"{name}: {a.op_class} {a.precision} -> {b.op_class} {b.precision}"
        else:
            yield from _field_lines(a, b)
        again = [name in plan.recompute.ops for plan in (one, two)]
        if again[0] != again[1]:
            yield f"{name}: runs again only by the {'first' if again[0] else 'second'}"
    yield from _in_one_alone("cast", *(_cast_texts(plan.casts) for plan in (one, two)))
    if one.lowerings and two.lowerings:  # plans of inspect have no record
        texts = (lowering_texts(plan.lowerings) for plan in (one, two))
        yield from _in_one_alone("lowered", *texts)


def _in_one_alone(what: str, *texts: Iterable[str]) -> Iterator[str]:
    """Yield a line for each text that one of two plans has alone."""
    first, second = map(dict.fromkeys, texts)
    for own, other, name in ((first, second, "first"), (second, first, "second")):
        for text in own:
            if text not in other:
                yield f"{what} {text}: only in the {name} plan"


def _field_lines(a: "Decision", b: "Decision") -> Iterator[str]:
    """Yield the other differences of two decisions that change numerics."""
    for name in (
        "operands",
        "results",
        "accumulator",
        "derivative",
        "derivative_accumulator",
        "forward",
        "backward",
        "scaling",
        "kernel",
    ):
        one, two = getattr(a, name), getattr(b, name)
        if one != two:
            yield f"{a.op}: {name} {_words(one)} -> {_words(two)}"


def _words(found: str | tuple[str, ...]) -> str:
    return (found if isinstance(found, str) else ", ".join(found)) or "none"


def _cast_texts(casts: "Sequence[Cast]") -> Iterator[str]:
    """Yield a text that identifies each cast."""
    for c in casts:
        yield f"%{c.value} {c.from_dtype} -> {c.to_dtype} for {', '.join(c.consumers)}"


# Reasons for an op, a module or a compound, in sentences with lines of source.

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
