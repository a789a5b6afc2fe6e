"""Demand analysis, backwards: the precision that the users of each value need.

``any < full < tested < exact``. A deny op demands full of its operands, so ``x * x``
under a mean is computed in full instead of being rounded first: a fast-variance layer
norm after a bias of 100 had relative error 610 without demand and 2.9e-3 with it.

A periodic or stepping op demands exact: the ops that compute its argument are never
lowered. Exactness goes back through every op, sums and contractions too, round the
carries of loops and into the bodies of custom rules, and ends where an op bends what it
reads (see ``exactness``). A float that the test of a loop compares is *tested*: the
same, but it ends at curves, too. A loop that waits until a residual is small waits
forever for one that is rounded.

``mean(x * x) - mean(x) ** 2`` of low means is noise. Where a policy lets statistics
return low (class accumulate), they do so only for users that do not demand full.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.ops.compounds import call_traits
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.exactness.bending import Bending
from amprewrite.passes.analysis.exactness.loop_tests import find_loop_tests
from amprewrite.passes.analysis.mean_subtraction import find_centring
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, FOLLOW, KEEP, PROMOTE


class Demand(IntEnum):
    """Precision that the users of a value need."""

    ANY = 0
    FULL = 1
    TESTED = 2
    EXACT = 3


ANY, FULL, TESTED, EXACT = Demand
"""The members, as in :mod:`amprewrite.policy.model`."""


@dataclass
class Demands:
    """Demand on every value, and the op that caused it.

    Attributes:
        of: Demand by value name; absent means any.
        cause: For a value demanded in full or exact, the user that demands it.
        ops: Demand on an op by its name: that of any result that is tested or exact;
            full if all are.
        origins: Ops that demand full by themselves, not for their own users.
        turned: Tested and exact values that a carry is in the next iteration of a loop.
        storages: The same of storages that ops write in place, by their later readers.
    """

    of: dict[str, Demand] = field(default_factory=dict[str, Demand])
    cause: dict[str, str] = field(default_factory=dict[str, str])
    ops: dict[str, Demand] = field(default_factory=dict[str, Demand])
    origins: set[str] = field(default_factory=set[str])
    turned: dict[str, Demand] = field(default_factory=dict[str, Demand])
    storages: dict[str, tuple[Demand, str]] = field(
        default_factory=dict[str, tuple[Demand, str]]
    )

    def on(self, value: str) -> Demand:
        """Return the demand on ``value``."""
        return self.of.get(value, ANY)

    def on_all(self, values: Iterable[str]) -> Demand:
        """Return the demand on ``values`` together, as that of several users."""
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

    def is_exact(self, op: Op) -> bool:
        """Return whether ``op`` makes an argument that must not be rounded."""
        return self.on_op(op) >= TESTED

    def exact_reason(self, graph: ProgramGraph, op: Op) -> str:
        """Return why ``op``, which makes an exact argument, is full."""
        cause = self.path(graph, op)[-1]
        return f"{cause} needs an exact argument: its producers stay full"

    def on_storages(self, graph: ProgramGraph, op: Op) -> Iterator[tuple[Demand, str]]:
        """Yield the exact demands on the storages that ``op`` writes, with causes."""
        for index in op.mutates:
            storage = graph.storage(op.operands[index])
            if storage in self.storages:
                yield self.storages[storage]

    def path(self, graph: ProgramGraph, op: Op) -> tuple[str, ...]:
        """Return the ops that forced ``op`` to full, nearest first."""
        found: dict[str, None] = {}
        cause: Op | None = op
        while cause is not None:
            names = (*cause.results, *cause.turns)
            causes = [(self.on(n), self.cause[n]) for n in names if n in self.cause]
            causes += self.on_storages(graph, cause)
            if not causes:
                break
            _, name = max(causes, key=itemgetter(0))
            if name in found:
                break
            found[name] = None
            cause = None if name in self.origins else graph.op_by_name.get(name)
        return tuple(found)


def _join(one: Demand | None, other: Demand) -> Demand:
    """Return the larger demand if either is tested or exact, else the smaller one."""
    if one is None:
        return other
    larger = max(one, other)
    return larger if larger >= TESTED else min(one, other)


def compute_demand(
    graph: ProgramGraph,
    classes: Mapping[str, Match],
    wanted_outputs: Iterable[str],
    exact: Iterable[str] = (),
) -> Demands:
    """Return the demand on every value.

    Args:
        graph: The program.
        classes: Class of every op.
        wanted_outputs: Outputs demanded in full precision.
        exact: Outputs that make exact arguments outside of the program.
    """
    outputs = {**dict.fromkeys(wanted_outputs, FULL), **dict.fromkeys(exact, EXACT)}
    reader = _Reader(graph, classes, outputs)
    turns = [value for op in graph.ops for value in op.turns]
    demands = reader.read(Demands())
    while True:
        turned = {v: demands.on(v) for v in turns if demands.on(v) >= TESTED}
        if turned == demands.turned:
            return demands
        demands.turned = turned
        demands = reader.read(demands)


class _Reader:
    """Reader of a program from its end to its beginning."""

    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        outputs: Mapping[str, Demand],
    ) -> None:
        self.graph, self.classes, self.outputs = graph, classes, outputs
        self.centring = find_centring(graph, classes)
        self.bending = Bending(graph)
        self.loop_tests = find_loop_tests(graph)

    def read(self, before: Demands) -> Demands:
        """Return the demand on every value.

        Args:
            before: Demands with fewer carries of loops that are exact. A value that
                was so before has the same cause, so that each path of causes ends.
        """
        demands = Demands(turned=before.turned)
        for name, demand in self.outputs.items():
            demands.add(name, demand, "output")
        for op in reversed(self.graph.ops):
            on_results = demands.ops[op.name] = self._on_op(op, demands)
            wanted, own = self._on_operands(op, on_results)
            if own:
                demands.origins.add(op.name)
            first = op.traits.exact_from if own and wanted is EXACT else 0
            for index, operand in enumerate(op.operands):
                known = before.on(operand) >= max(wanted, TESTED)
                cause = before.cause[operand] if known else op.name
                demands.add(operand, FULL if index < first else wanted, cause)
                self._note_storage(operand, demands)
        return demands

    def _note_storage(self, name: str, demands: Demands) -> None:
        """Record an exact reader of a storage, for the ops that write it before."""
        storage, demand = self.graph.storage(name), demands.on(name)
        known, _ = demands.storages.get(storage, (FULL, ""))
        if demand > known and storage in self.graph.written:
            demands.storages[storage] = demand, demands.cause[name]

    def _on_op(self, op: Op, demands: Demands) -> Demand:
        """Return the demand on ``op``, from the demands on its results."""
        values = self.graph.values
        complex_ones = (n for n in op.results if values[n].dtype.startswith("complex"))
        others = [demands.on(name) for name in complex_ones]
        others += [demands.turned.get(name, ANY) for name in op.turns]
        others += [demand for demand, _ in demands.on_storages(self.graph, op)]
        found = demands.on_all(name for name in op.results if values[name].is_float)
        found = max(found, *(demand for demand in others if demand >= TESTED), ANY)
        allowed = self.classes[op.name].op_class is ALLOW
        return FULL if allowed and found >= TESTED and self.bending.at(op) else found

    def _on_operands(self, op: Op, on_results: Demand) -> tuple[Demand, bool]:
        """Return the demand of ``op`` on its operands, and whether it is its own."""
        if (own := self._own(op)) is not ANY:
            return own, True
        op_class = self.classes[op.name].op_class
        metadata_only = op_class is KEEP and op.operand_rule == "any"
        if metadata_only and op.canonical != USER_CAST:
            return ANY, True
        if on_results >= TESTED and not self._ends(op, on_results):
            return on_results, False
        passes = op_class is PROMOTE or op_class is FOLLOW
        if passes and on_results < TESTED and op.name not in self.centring:
            return on_results, False
        if op_class is ACCUMULATE and op.traits.statistic:
            return min(on_results, FULL), True
        loose = op_class is ALLOW or op_class is ACCUMULATE
        return (ANY if loose and on_results < TESTED else FULL), True

    def _ends(self, op: Op, on_results: Demand) -> bool:
        """Return whether the demand on the results of ``op`` ends there."""
        curves = on_results is TESTED and self.bending.curves(op)
        return curves or self.bending.at(op)

    def _own(self, op: Op) -> Demand:
        """Return the demand of an op that needs an exact argument, else any."""
        group = op.traits.group
        compares = op.traits.orders or group == Group.COMPARISON
        searches = compares and any(call_traits(c).exact_argument for c in op.calls)
        dtypes = (self.graph.values[name].dtype for name in op.operands)
        angles = group == Group.EXPONENTIAL and any(
            dtype.startswith("complex") for dtype in dtypes
        )
        if op.traits.exact_argument or searches or angles or _steps(op):
            return EXACT
        return TESTED if op.name in self.loop_tests else ANY


def _steps(op: Op) -> bool:
    """Return whether ``op`` casts to integers or booleans, which jump."""
    if op.canonical != USER_CAST:
        return False
    numbers = is_float(op.dtype_argument) or op.dtype_argument.startswith("complex")
    return not numbers
