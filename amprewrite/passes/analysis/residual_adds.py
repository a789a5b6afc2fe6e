"""Residual additions, and the last contractions of the branches that they add.

An addition is residual if one of its operands, the branch, contracts values that depend
on the other, the skip: a sum without a contraction between is arithmetic, such as that
of a gelu that is written out. Views, casts, dropout and constant factors between a
value and the addition are looked through. Where the skip is the sum of another residual
(x + attention(x) + mlp(x)), the skip of that counts too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.factors import factor_indices

CONTRACTIONS = frozenset({"contraction", "convolution", "attention", "recurrent"})
"""Groups of ops of which a branch has one."""

_MOVES = ("movement", "cast", "dropout")
"""Groups of ops that pass a value on."""

_SCALES = ("div", "mul", "scale")
"""Ops that multiply by a number, where they have one operand."""

_PAIR = 2


@dataclass(frozen=True)
class ResidualAdd:
    """One residual addition.

    Attributes:
        op: The addition.
        branch: Index of the operand that the branch made.
        skips: The values that the branch may start from: the other operand, a value
            of which it is a view or a multiple, and the skips of the sum that it is.
    """

    op: Op
    branch: int
    skips: frozenset[str]

    @property
    def skip(self) -> int:
        """Index of the operand that is the skip."""
        return 1 - self.branch


def residual_adds(graph: ProgramGraph) -> Iterator[ResidualAdd]:
    """Yield each residual addition, in program order."""
    ancestry = _Ancestry(graph)
    carried: dict[str, frozenset[str]] = {}
    for op in graph.ops:
        if op.canonical != "add" or len(set(op.operands)) != _PAIR:
            continue
        for branch in (1, 0):
            skip = op.operands[1 - branch]
            moved = _moved(graph, skip)
            skips = frozenset({skip, moved}) | carried.get(moved, frozenset())
            if ancestry.contracts(op.operands[branch], skips):
                carried[op.results[0]] = skips
                yield ResidualAdd(op, branch, skips)
                break


def last_contractions(graph: ProgramGraph) -> frozenset[str]:
    """Return the ops that are the last contractions of residual branches.

    In a transformer they are the output projection of attention and the second layer
    of the MLP.
    """
    found: set[str] = set()
    for add in residual_adds(graph):
        known, waiting = set(add.skips), [add.op.operands[add.branch]]
        while waiting:
            name = waiting.pop()
            maker = graph.producer.get(name)
            if name in known or maker is None:
                continue
            known.add(name)
            if factor_indices(maker):
                found.add(maker.name)
            else:
                waiting.extend(maker.operands)
    return frozenset(found)


class _Ancestry:
    """Values that each value depends on, as bits of integers: programs are long."""

    def __init__(self, graph: ProgramGraph) -> None:
        self.bit: dict[str, int] = {}
        self.contracted: dict[str, int] = {}
        above: dict[str, int] = {}
        for op in graph.ops:
            every = below = 0
            for name in op.operands:
                every |= above.get(name, 0) | self._bit(name)
                below |= self.contracted.get(name, 0)
            if op.traits.group in CONTRACTIONS:
                below = every
            for name in op.results:
                above[name], self.contracted[name] = every, below

    def _bit(self, name: str) -> int:
        return self.bit.setdefault(name, 1 << len(self.bit))

    def contracts(self, name: str, ancestors: frozenset[str]) -> bool:
        """Return whether a contraction lies between a value and an ancestor."""
        wanted = 0
        for ancestor in ancestors:
            wanted |= self.bit.get(ancestor, 0)
        return bool(self.contracted.get(name, 0) & wanted)


def _moved(graph: ProgramGraph, name: str) -> str:
    """Return the value that ``name`` is a view, a cast, a dropout or a multiple of."""
    while (op := graph.producer.get(name)) and op.operands:
        scales = op.canonical in _SCALES and len(op.operands) == 1
        if op.traits.group not in _MOVES and not scales:
            break
        name = op.operands[0]
    return name
