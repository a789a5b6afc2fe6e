"""A plan as text: its summary, the reason for one op, the difference of two plans."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from amprewrite.ops import line_key
from amprewrite.plan.overview.explain import because
from amprewrite.plan.overview.lines import cast_line, compound_lines, layer_lines
from amprewrite.plan.overview.lowerings import lowering_line, lowering_texts

if TYPE_CHECKING:
    from amprewrite.plan.fields import TimedPlan
    from amprewrite.plan.memory.recompute import Recompute
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
    casts_one, casts_two = _cast_texts(one.casts), _cast_texts(two.casts)
    for text in casts_one:
        if text not in casts_two:
            yield f"cast {text}: only in the first plan"
    for text in casts_two:
        if text not in casts_one:
            yield f"cast {text}: only in the second plan"
    yield from _lowering_differences(one, two)


def _lowering_differences(one: "Plan", two: "Plan") -> Iterator[str]:
    """Yield the lowerings of one plan alone, if both have a record."""
    if not (one.lowerings and two.lowerings):
        return
    texts = [dict.fromkeys(lowering_texts(plan.lowerings)) for plan in (one, two)]
    for (own, other), name in ((texts, "first"), (texts[::-1], "second")):
        yield from (
            f"lowered {text}: only in the {name} plan"
            for text in own
            if text not in other
        )


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


def _cast_texts(casts: "Sequence[Cast]") -> dict[str, None]:
    """Return a line that identifies each cast, in order."""
    return dict.fromkeys(
        f"%{c.value} {c.from_dtype} -> {c.to_dtype} for {', '.join(c.consumers)}"
        for c in casts
    )
