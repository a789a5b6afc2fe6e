"""Demand, backwards: which values are wanted in full precision by all who read them.

``any < full < exact``. A deny op demands full of its operands, so ``x * x`` under a
mean is computed in full instead of being rounded first: a fast-variance layer norm
after a bias of 100 had relative error 610 without demand and 2.9e-3 with it. A
periodic or stepping op demands exact: what produces its argument is never lowered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.centring import find_centring
from amprewrite.passes.classify import USER_CAST
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match

EXACT_OPS = frozenset(
    ("sin", "cos", "tan", "floor", "ceil", "round", "trunc", "frac", "floor_divide")
)
"""Ops whose result jumps or turns with a small error of a large argument."""


class Demand(IntEnum):
    """How precisely a value is wanted."""

    ANY = 0
    FULL = 1
    EXACT = 2


@dataclass
class Demands:
    """Demand on every value, and the op that made it.

    Attributes:
        of: Demand by value name; absent means any.
        cause: For a value wanted in full or exact, the user that wants it.
        ops: Demand on an op by its name: exact if any result is, full if all are.
        origins: Ops that want full by themselves, not for their own users.
    """

    of: dict[str, Demand] = field(default_factory=dict[str, Demand])
    cause: dict[str, str] = field(default_factory=dict[str, str])
    ops: dict[str, Demand] = field(default_factory=dict[str, Demand])
    origins: set[str] = field(default_factory=set[str])

    def on(self, value: str) -> Demand:
        """Return the demand on ``value``."""
        return self.of.get(value, Demand.ANY)

    def on_op(self, op: Op) -> Demand:
        """Return the demand on ``op``."""
        return self.ops.get(op.name, Demand.ANY)

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


def _join(demands: Iterable[Demand]) -> Demand:
    """Return exact if any is exact, else what all have in common."""
    found = set(demands)
    if Demand.EXACT in found:
        return Demand.EXACT
    return Demand.FULL if found == {Demand.FULL} else Demand.ANY


def compute_demand(
    graph: ProgramGraph, classes: Mapping[str, Match], wanted_outputs: Iterable[str]
) -> Demands:
    """Return the demand on every value.

    Args:
        graph: The program.
        classes: Class of every op.
        wanted_outputs: Values that leave the program in full precision.
    """
    demands = Demands()
    centring = find_centring(graph, classes)
    uses: dict[str, list[tuple[Demand, str]]] = {}
    for name in wanted_outputs:
        uses.setdefault(name, []).append((Demand.FULL, "output"))
    for op in reversed(graph.ops):
        for result in op.results:
            _settle(demands, result, uses.get(result, []))
        floats = (r for r in op.results if is_float(graph.values[r].dtype))
        on_results = demands.ops[op.name] = _join(demands.on(r) for r in floats)
        op_class = classes[op.name].op_class
        wanted = _on_operands(op, op_class, on_results)
        if op.name in centring:
            wanted = max(wanted, Demand.FULL)
        if op_class not in (OpClass.PROMOTE, OpClass.FOLLOW) or op.name in centring:
            demands.origins.add(op.name)
        for operand in op.operands:
            uses.setdefault(operand, []).append((wanted, op.name))
    for value in graph.inputs():
        _settle(demands, value.name, uses.get(value.name, []))
    return demands


def _settle(demands: Demands, value: str, uses: list[tuple[Demand, str]]) -> None:
    demand = _join(demand for demand, _ in uses)
    if demand is not Demand.ANY:
        demands.of[value] = demand
        demands.cause[value] = next(name for d, name in reversed(uses) if d >= demand)


def _on_operands(op: Op, op_class: OpClass, on_results: Demand) -> Demand:
    """Return what ``op`` demands of its operands, given the demand on its results."""
    if op.canonical in EXACT_OPS or _steps(op):
        return Demand.EXACT
    match op_class:
        case OpClass.ALLOW:
            return Demand.FULL if on_results is Demand.EXACT else Demand.ANY
        case OpClass.DENY:
            return Demand.FULL
        case OpClass.ACCUMULATE:
            return Demand.EXACT if on_results is Demand.EXACT else Demand.ANY
        case OpClass.PROMOTE | OpClass.FOLLOW:
            return on_results
        case OpClass.KEEP:
            metadata_only = op.mixing == "any" and op.canonical != USER_CAST
            return Demand.ANY if metadata_only else Demand.FULL


def _steps(op: Op) -> bool:
    """Whether ``op`` casts to integers or booleans, which jump."""
    numbers = is_float(op.dtype_argument) or op.dtype_argument.startswith("complex")
    return op.canonical == USER_CAST and not numbers
