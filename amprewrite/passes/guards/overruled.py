"""Warn of guards and exact arguments that a rule or a mark of the user rounds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Guard
from amprewrite.passes.guards.find_guards import find_guards
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, Reason
from amprewrite.policy.match import Match


def overruled(
    graph: ProgramGraph, plan: Plan, matcher: Matcher, classes: Mapping[str, Match]
) -> Iterator[str]:
    """Yield a line for each guard, and each exact argument, that a rule rounds.

    Without the rule, the op of the guard or one on the way to its reader has another
    class, and the guard is kept.

    Args:
        graph: The program.
        plan: Its plan.
        matcher: Policy and overrides.
        classes: Class of every op.
    """
    ruled = {name: found for name, found in classes.items() if _is_ruled(found)}
    if not ruled or not matcher.policy.demand:
        return
    low = {d.op for d in plan.decisions if d.precision == plan.low}
    rounded: dict[str, str] = {}
    for name, guard in _guards(graph, plan, matcher).items():
        way = (name, *guard.causes)
        by = next((ruled[n] for n in way if n in ruled), None)
        if by is not None and name in low and not guard.is_product:
            place = _place(graph.op_by_name[name])
            reads = f"and {way[-1]} reads it; want another class, or no rule"
            line = f"{_text(by)} rounds a guard{place}: {guard.why}, {reads}"
            rounded.setdefault(guard.why, line)
    yield from rounded.values()
    for op in graph.ops:
        if op.name in ruled and op.name in low and op.traits.exact_argument:
            line = f"{_text(ruled[op.name])} rounds an argument of {op.name}"
            yield f"{line}{_place(op)}, which has to be exact; want deny, or no rule"


def _guards(graph: ProgramGraph, plan: Plan, matcher: Matcher) -> Mapping[str, Guard]:
    """Return the guards of the program without rules and marks."""
    without = Matcher(replace(matcher.policy, rules=()), full=matcher.full)
    ops = tuple(replace(op, asked="") if op.asked else op for op in graph.ops)
    plain = replace(graph, ops=ops)
    pairs = zip(graph.outputs, plan.outputs, strict=True)
    outputs = [name for name, dtype in pairs if dtype == plan.full]
    return find_guards(plain, classify(plain, without), outputs, plan.low, plan.full)


def _is_ruled(found: Match) -> bool:
    return found.reason.is_rule or found.reason is Reason.MARKER


def _text(found: Match) -> str:
    """Return the rule or the mark: ``overrides[0]``, and its text."""
    return f"{found.rule} ({found.why})"


def _place(op: Op) -> str:
    return f" ({op.source})" if op.source else ""
