"""Demand analysis, backwards: the precision that the users of each value need.

``any < full < exact``. A deny op demands full of its operands, so ``x * x`` under a
mean is computed in full instead of being rounded first: a fast-variance layer norm
after a bias of 100 had relative error 610 without demand and 2.9e-3 with it. A periodic
or stepping op demands exact: the ops that compute its argument are never lowered.

``mean(x * x) - mean(x) ** 2`` of low means is noise. Where a policy lets statistics
return low (class accumulate), they do so only for users that do not demand full.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.mean_subtraction import find_centring
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, FOLLOW, KEEP, PROMOTE


class Demand(IntEnum):
    """Precision that the users of a value need."""

    ANY = 0
    FULL = 1
    EXACT = 2


ANY, FULL, EXACT = Demand
"""The members, as in :mod:`amprewrite.policy.model`."""


@dataclass
class Demands:
    """Demand on every value, and the op that caused it.

    Attributes:
        of: Demand by value name; absent means any.
        cause: For a value demanded in full or exact, the user that demands it.
        ops: Demand on an op by its name: exact if any result is, full if all are.
        origins: Ops that demand full by themselves, not for their own users.
    """

    of: dict[str, Demand] = field(default_factory=dict[str, Demand])
    cause: dict[str, str] = field(default_factory=dict[str, str])
    ops: dict[str, Demand] = field(default_factory=dict[str, Demand])
    origins: set[str] = field(default_factory=set[str])

    def on(self, value: str) -> Demand:
        """Return the demand on ``value``."""
        return self.of.get(value, ANY)

    def on_all(self, values: Iterable[str]) -> Demand:
        """Return exact if the demand on any of ``values`` is, full if all are."""
        joined: Demand | None = None
        for value in values:
            joined = _join(joined, self.on(value))
        return ANY if joined is None else joined

    def add(self, value: str, demand: Demand, user: str) -> None:
        """Record the demand of ``user``; users are added last one first."""
        joined = _join(self.of.get(value), demand)
        self.of[value] = joined
        if joined is ANY:
            self.cause.pop(value, None)
        elif demand >= joined:
            self.cause[value] = user

    def on_op(self, op: Op) -> Demand:
        """Return the demand on ``op``."""
        return self.ops.get(op.name, ANY)

    def path(self, graph: ProgramGraph, op: Op) -> tuple[str, ...]:
        """Return the ops that forced ``op`` to full, nearest first."""
        found: dict[str, None] = {}
        results = op.results
        while name := next((self.cause[r] for r in results if r in self.cause), None):
            if name in found:
                break
            found[name] = None
            if name in self.origins:
                break
            cause = graph.op_by_name.get(name)
            results = cause.results if cause else ()
        return tuple(found)


def _join(one: Demand | None, other: Demand) -> Demand:
    """Return exact if either demand is exact, else the smaller one."""
    if one is None or other is EXACT:
        return other
    return one if one is EXACT else min(one, other)


def compute_demand(
    graph: ProgramGraph, classes: Mapping[str, Match], wanted_outputs: Iterable[str]
) -> Demands:
    """Return the demand on every value.

    Args:
        graph: The program.
        classes: Class of every op.
        wanted_outputs: Outputs demanded in full precision.
    """
    demands = Demands()
    centring = find_centring(graph, classes)
    for name in wanted_outputs:
        demands.add(name, FULL, "output")
    for op in reversed(graph.ops):
        on_results = demands.ops[op.name] = demands.on_all(
            name for name in op.results if graph.values[name].is_float
        )
        op_class = classes[op.name].op_class
        wanted = _on_operands(op, op_class, on_results)
        if op.name in centring:
            wanted = max(wanted, FULL)
        if op_class not in (PROMOTE, FOLLOW) or op.name in centring:
            demands.origins.add(op.name)
        for operand in op.operands:
            demands.add(operand, wanted, op.name)
    return demands


def _on_operands(op: Op, op_class: OpClass, on_results: Demand) -> Demand:
    """Return the demand of ``op`` on its operands, from that on its results."""
    if op.traits.exact_argument or _steps(op):
        return EXACT
    if op_class is PROMOTE or op_class is FOLLOW:
        return on_results
    if op_class is ALLOW:
        return FULL if on_results is EXACT else ANY
    if op_class is ACCUMULATE:
        passes = op.traits.statistic or on_results is EXACT
        return on_results if passes else ANY
    metadata_only = op_class is KEEP and op.operand_rule == "any"
    return ANY if metadata_only and op.canonical != USER_CAST else FULL


def _steps(op: Op) -> bool:
    """Return whether ``op`` casts to integers or booleans, which jump."""
    if op.canonical != USER_CAST:
        return False
    numbers = is_float(op.dtype_argument) or op.dtype_argument.startswith("complex")
    return not numbers
