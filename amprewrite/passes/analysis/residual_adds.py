"""Residual additions, and the last contractions of the branches that they add.

An addition is residual if one of its operands, the branch, depends on the other, the
skip. Views, casts, dropout and constant factors between a value and the addition are
looked through.
"""

from collections.abc import Iterator

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.factors import factor_indices

_MOVES = ("movement", "cast", "dropout")
"""Groups of ops that pass a value on."""

_SCALES = ("amprewrite.scale", "div", "mul")
"""Ops that multiply by a number, where they have one operand."""

_PAIR = 2


def residual_adds(graph: ProgramGraph) -> Iterator[tuple[Op, str, str]]:
    """Yield each residual addition with its skip and its branch."""
    for op in graph.ops:
        if op.canonical != "add" or len(set(op.operands)) != _PAIR:
            continue
        one, two = op.operands
        if graph.values[one].shape != graph.values[two].shape:
            continue  # a bias, or a mask
        if _depends(graph, two, _moved(graph, one)):
            yield op, one, two
        elif _depends(graph, one, _moved(graph, two)):
            yield op, two, one


def last_contractions(graph: ProgramGraph) -> frozenset[str]:
    """Return the ops that are the last contractions of residual branches.

    In a transformer they are the output projection of attention and the second layer
    of the MLP.
    """
    found: set[str] = set()
    for _, skip, branch in residual_adds(graph):
        known, waiting = {skip, _moved(graph, skip)}, [branch]
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


def _moved(graph: ProgramGraph, name: str) -> str:
    """Return the value that ``name`` is a view, a cast, a dropout or a multiple of."""
    while (op := graph.producer.get(name)) and op.operands:
        scales = op.canonical in _SCALES and len(op.operands) == 1
        if op.traits.group not in _MOVES and not scales:
            break
        name = op.operands[0]
    return name


def _depends(graph: ProgramGraph, name: str, on: str) -> bool:
    """Return whether a value is computed from another one, not only moved."""
    if _moved(graph, name) == on:
        return False
    start = graph.producer.get(on)
    first = graph.position[start.name] if start else -1
    known, waiting = {name}, [name]
    while waiting:
        op = graph.producer.get(waiting.pop())
        if op is None or graph.position[op.name] <= first:
            continue
        if on in op.operands:
            return True
        waiting.extend(n for n in op.operands if n not in known)
        known.update(op.operands)
    return False
