"""Select the roundings to measure, and the cost of one that must not happen."""

from amprewrite.ir import ProgramGraph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.weights_and_literals import extreme_values
from amprewrite.passes.cost.cost import counted_errors
from amprewrite.passes.pipeline import situate
from amprewrite.passes.placement.constraints import find_freedom
from amprewrite.passes.placement.contract_formats import contract_formats
from amprewrite.plan.sensitivity import EightBits, Probes, factors_of
from amprewrite.policy import Matcher, OpClass

ROUNDING = (OpClass.ALLOW, OpClass.ACCUMULATE, OpClass.PROMOTE)
"""Classes of ops that round their result; follow ops only pass values on."""


def find_probes(
    graph: ProgramGraph, matcher: Matcher, *, keep_parameter_dtype: bool
) -> Probes:
    """Return the roundings that placement ``optimal`` may choose for ``graph``.

    A storage that is written in place has no probe: its values change over time, and a
    contraction that would round it to 8 bits is not predicted.

    Args:
        graph: The program.
        matcher: Policy and overrides; the policy has a low dtype.
        keep_parameter_dtype: Whether parameters keep their dtype.
    """
    policy = matcher.policy
    classes = classify(graph, matcher)
    situation = situate(graph, policy, classes, ())
    pinned = find_freedom(situation, keep_parameter_dtype=keep_parameter_dtype).pinned
    stored: set[str] = set()
    read: set[tuple[str, str]] = set()
    for op in graph.ops:
        free, names = counted_errors(situation, op)
        if not free or op.name in pinned:
            continue
        op_class = classes[op.name].op_class
        if op_class in ROUNDING or op.name in situation.followed:
            stored.update(op.results)
        read.update((name, op.name) for name in names)

    def is_constant(name: str) -> bool:
        return graph.storage(name) not in graph.written

    def is_probed(name: str) -> bool:
        return graph.is_dtype(name, policy.full) and is_constant(name)

    eight = {
        EightBits(op, found.forward, found.scaling): factors_of(graph.op_by_name[op])
        for op, found in contract_formats(graph, matcher, classes).items()
    }
    known = {key: names for key, names in eight.items() if all(map(is_constant, names))}
    return Probes(
        low=policy.low,
        full=policy.full,
        stored=frozenset(filter(is_probed, stored - situation.weights.keys())),
        read=frozenset((name, op) for name, op in read if is_probed(name)),
        saturated=frozenset(extreme_values(graph, classes, policy.low)),
        weights=frozenset(situation.weights),
        eight={k: names if k.format else frozenset() for k, names in known.items()},
        unpredicted=frozenset(eight.keys() - known.keys()),
    )
