"""Compounds of a plan: the ops of one call of softmax, of a norm, of a loss.

An op belongs to a call that the reader of its framework noted; to itself, if it is the
kernel of one; or, without names, to a structure that is no other thing.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amprewrite.ops import traits_of
from amprewrite.ops.compounds import ATTENTION, kernel_compound

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


# Compounds that no name tells, by the ops they are made of and the edges between.
#
# A softmax is ``e / sum(e)`` with ``e = exp(...)``; a norm multiplies by the inverse
# root of the mean of squares of the same value. Where an edge is missing, nothing is
# said.

_VALUE = re.compile(r"%([^\s,:)]+):")
_MOVES = frozenset(("movement", "cast"))
_MAXIMA = frozenset(("amax", "max"))
_SHIFTS = frozenset((*_MAXIMA, "maximum", "detach"))

_Ops = set[str]


@dataclass
class _Edges:
    """The ops of one graph, by the values between them.

    Attributes:
        decisions: The ops by name.
        operands: Values that each op reads.
        makers: The op that makes each value; inputs and parameters have none.
        constants: Values made of numbers alone.
    """

    decisions: "dict[str, Decision]" = field(default_factory=dict[str, "Decision"])
    operands: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    makers: dict[str, str] = field(default_factory=dict[str, str])
    constants: set[str] = field(default_factory=set[str])

    def add(self, decision: "Decision", line: str) -> None:
        """Add an op by its line in the program of a plan."""
        before, _, after = line.partition(") -> ")
        read, made = _VALUE.findall(before), _VALUE.findall(after)
        self.decisions[decision.op] = decision
        self.operands[decision.op] = read
        self.makers.update(dict.fromkeys(made, decision.op))
        if self.constants.issuperset(read):
            self.constants.update(made)

    def kind(self, value: str | None) -> str:
        """Return the canonical name of the op that makes a value; empty for none."""
        op = self.makers.get(value or "")
        return self.decisions[op].canonical if op else ""

    def read(self, value: str) -> list[str]:
        """Return the operands of the op that makes a value."""
        return self.operands[self.makers[value]]

    def first(self, value: str) -> str:
        """Return the first of these; empty where the op reads numbers alone."""
        return next(iter(self.read(value)), "")

    def back(self, value: str) -> tuple[str, _Ops]:
        """Return the value before moves of data and casts, and these ops."""
        way: _Ops = set()
        while (op := self.makers.get(value)) and len(self.operands[op]) == 1:
            decision = self.decisions[op]
            if traits_of(decision.canonical, decision.native).group not in _MOVES:
                break
            way.add(op)
            (value,) = self.operands[op]
        return value, way

    def varying(self, value: str) -> tuple[list[str], _Ops]:
        """Return the operands behind a value that are no constants, and other ops."""
        found = [name for name in self.read(value) if name not in self.constants]
        ops: _Ops = set()
        left = [value]
        while left:
            op = self.makers[left.pop()]
            if op not in ops:
                ops.add(op)
                left += [v for v in self.operands[op] if v in self.constants]
        return found, ops

    def mean(self, value: str) -> tuple[str, _Ops] | None:
        """Return the operand of a mean, and the ops; None if a value is no mean.

        ``jnp.var`` divides by a count that it computes, and gives NaN where that is 0.
        """
        value, way = self.back(value)
        wanted = "mean"
        for kind in ("where", "div"):
            if self.kind(value) != kind:
                continue
            read, ops = self.varying(value)
            if len(read) != 1:
                return None
            value, more = self.back(read[0])
            way |= ops | more
            wanted = "sum"
        if self.kind(value) != wanted:
            return None
        inner, more = self.back(self.first(value))
        return inner, way | more | {self.makers[value]}

    def centred(self, value: str) -> tuple[str, _Ops] | None:
        """Return a value before its mean is subtracted, and the ops; None if not so."""
        value, way = self.back(value)
        if self.kind(value) != "sub" or len(self.read(value)) != 2:  # noqa: PLR2004  # operands
            return None
        whole, mean = self.read(value)
        whole, more = self.back(whole)
        found = self.mean(mean)
        if found is None or found[0] != whole:
            return None
        return whole, way | more | found[1] | {self.makers[value]}


def structures(
    plan: "Plan", taken: Collection[str]
) -> "Iterator[tuple[str, tuple[Decision, ...]]]":
    """Yield each compound that is found, as its name and its ops in program order.

    Args:
        plan: The plan; one without the lines of its program has no edges.
        taken: Ops that belong to another compound.
    """
    held = set(taken)
    for edges in _graphs(plan):
        for op in edges.decisions:
            name, ops = _softmax(edges, op) or _norm(edges, op) or ("", set[str]())
            if ops and held.isdisjoint(ops):
                held |= ops
                yield name, tuple(d for o, d in edges.decisions.items() if o in ops)


def _graphs(plan: "Plan") -> Iterator[_Edges]:
    """Yield the edges of each graph of a plan."""
    edges = _Edges()
    decisions = iter(plan.decisions)
    for line in plan.program:
        if line.startswith("return "):
            yield edges
            edges = _Edges()
        elif decision := next(decisions, None):
            edges.add(decision, line)


def _softmax(edges: _Edges, op: str) -> tuple[str, _Ops] | None:
    """Return the ops of a softmax that ends in ``op``."""
    read = edges.operands[op]
    if edges.decisions[op].canonical != "div" or len(read) != 2:  # noqa: PLR2004  # operands
        return None
    (over, way), (under, below) = edges.back(read[0]), edges.back(read[1])
    if edges.kind(over) != "exp" or edges.kind(under) != "sum":
        return None
    summed, moved = edges.back(edges.first(under))
    if summed != over:
        return None
    makers = {edges.makers[over], edges.makers[under]}
    return "softmax", {op, *makers, *way, *below, *moved, *_shift(edges, over)}


def _shift(edges: _Edges, exponential: str) -> _Ops:
    """Return the ops that subtract the maximum before an exponential; else none."""
    shifted = edges.first(exponential)
    if edges.kind(shifted) != "sub" or len(edges.read(shifted)) != 2:  # noqa: PLR2004  # operands
        return set()
    whole, value = edges.read(shifted)
    whole, found = edges.back(whole)[0], {edges.makers[shifted]}
    while True:
        value, way = edges.back(value)
        found |= way
        if edges.kind(value) not in _SHIFTS:
            return set()
        found.add(edges.makers[value])
        inner = edges.first(value)
        if edges.kind(value) in _MAXIMA:
            return found if edges.back(inner)[0] == whole else set()
        value = inner


def _norm(edges: _Edges, op: str) -> tuple[str, _Ops] | None:
    """Return the ops of a norm that multiplies by an inverse root in ``op``."""
    kind, read = edges.decisions[op].canonical, edges.operands[op]
    roots = {"mul": "rsqrt", "div": "sqrt"}
    if kind not in roots or len(read) != 2:  # noqa: PLR2004  # operands
        return None
    for scaled, root in (read, read[::-1])[: 2 if kind == "mul" else 1]:
        inverse, way = edges.back(root)
        if edges.kind(inverse) != roots[kind]:
            continue
        whole, moved = edges.back(scaled)
        ops = {op, edges.makers[inverse], *way, *moved}
        under, added = _without_epsilon(edges, edges.first(inverse))
        for part, scale in _scaled(edges, whole):
            centre = edges.centred(part)
            for source, more, centres in _variances(edges, under):
                if centres and centre is not None and source == centre[0]:
                    return "layer_norm", ops | added | more | centre[1] | scale
                if not centres and source == part:
                    return "rms_norm", ops | added | more | scale
    return None


def _scaled(edges: _Edges, value: str) -> Iterator[tuple[str, _Ops]]:
    """Yield a value and the factors of it: a norm may be scaled first."""
    yield value, set()
    if edges.kind(value) == "mul":
        for operand in edges.read(value):
            part, way = edges.back(operand)
            yield part, way | {edges.makers[value]}


def _without_epsilon(edges: _Edges, value: str) -> tuple[str, _Ops]:
    """Return a value before a small number is added, and the ops after it."""
    value, way = edges.back(value)
    if edges.kind(value) == "add":
        way.add(edges.makers[value])
        value, more = edges.back(edges.first(value))
        way |= more
    return value, way


def _variances(edges: _Edges, value: str) -> Iterator[tuple[str, _Ops, bool]]:
    """Yield the values of which one is the variance or mean square, with the ops.

    Yields:
        That value, the ops between, and whether its mean was subtracted.
    """
    if edges.kind(value) == "var":
        yield edges.back(edges.first(value))[0], {edges.makers[value]}, True
    found = edges.mean(value)
    if found is None:
        return
    square, ops = found
    read = edges.read(square) if square in edges.makers else []
    two = edges.kind(square) == "mul" and len(read) == 2 and len(set(read)) == 1  # noqa: PLR2004  # operands
    if not two and edges.kind(square) not in ("square", "integer_pow", "pow"):
        return
    source, way = edges.back(edges.first(square))
    ops = ops | way | {edges.makers[square]}
    if centre := edges.centred(source):
        yield centre[0], ops | centre[1], True
    yield source, ops, False
