"""Compounds of a plan: the ops of one call of softmax, of a norm, of a loss.

An op belongs to a call that the reader of its framework noted; to itself, if it is the
kernel of one; or, without names, to a structure that is no other thing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amprewrite.ops import traits_of
from amprewrite.ops.compounds import ATTENTION, kernel_compound
from amprewrite.plan.overview.structure import structures

if TYPE_CHECKING:
    from amprewrite.plan.model import Decision, Plan

_CONTRACTS = frozenset(("contraction", "convolution", "attention", "recurrent"))
"""Groups of which no compound but attention holds an op."""


@dataclass(frozen=True)
class Compound:
    """The ops of one call.

    Attributes:
        name: Its kind, such as ``softmax``.
        call: The name with a number, unique in the plan, such as ``softmax#3``.
        ops: The decisions about its ops, in program order.
    """

    name: str
    call: str
    ops: "tuple[Decision, ...]"

    @property
    def path(self) -> str:
        """Module path of its first op."""
        return self.ops[0].path

    @property
    def source(self) -> str:
        """``file:line`` of its first op."""
        return self.ops[0].source


def find_compounds(plan: "Plan") -> tuple[Compound, ...]:
    """Return the compounds of a plan, in program order.

    A call with contractions in it is something larger, whatever its name is; then the
    calls inside of it count. Ops of attention are its own unless they are a compound
    themselves, such as its softmax.
    """
    larger = {
        call
        for decision in plan.decisions
        if _contracts(decision)
        for call in decision.calls
        if name_of(call) != ATTENTION
    }
    found: dict[str, list[Decision]] = {}
    for decision in plan.decisions:
        if call := _call_of(decision, larger):
            found.setdefault(call, []).append(decision)
    taken = {d.op for ops in found.values() for d in ops}
    for name, ops in structures(plan, taken):
        found[f"{name}@{ops[0].op}"] = list(ops)
    order = {decision.op: i for i, decision in enumerate(plan.decisions)}
    ranked = sorted(found.items(), key=lambda item: order[item[1][0].op])
    return tuple(_numbered(ranked))


def name_of(call: str) -> str:
    """Return the compound of a call: ``softmax`` of ``softmax#3``."""
    return call.partition("#")[0].partition("@")[0]


def _contracts(decision: "Decision") -> bool:
    return traits_of(decision.canonical, decision.native).group in _CONTRACTS


def _call_of(decision: "Decision", larger: set[str]) -> str:
    """Return the call that an op is counted in; empty if it is in none."""
    calls = [call for call in decision.calls if call not in larger]
    inner = [call for call in calls if name_of(call) != ATTENTION]
    if calls:
        return (inner or calls)[0]
    kernel = kernel_compound(decision.canonical)
    return f"{kernel}@{decision.op}" if kernel else ""


def _numbered(found: "Iterable[tuple[str, list[Decision]]]") -> Iterator[Compound]:
    """Yield the compounds with the numbers in which they come."""
    counts: dict[str, int] = {}
    for call, ops in found:
        name = name_of(call)
        counts[name] = counts.get(name, 0) + 1
        yield Compound(name, f"{name}#{counts[name]}", tuple(ops))
