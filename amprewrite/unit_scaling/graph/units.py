"""Units of scaling: single ops, and elementwise regions with one root.

A maximal region of elementwise ops that depends on one tensor is a function of one
number, whatever ops it is written with. It gets one rule, and its input one factor.
Statistics inside (the mean square of a norm that is written out) belong to it too; it
is then a function of rows.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from amprewrite.ir import Op
from amprewrite.unit_scaling.graph.differentiable import Differentiable

ELEMENTWISE = frozenset({
    "activation", "cast", "clamp", "exponential", "log_exp", "logarithm", "pointwise",
    "power", "reciprocal", "sign", "square", "trigonometric", "inverse_trigonometric",
    "special",
})  # fmt: skip
"""Groups of ops that compute each element by itself."""
NOT_ELEMENTWISE = frozenset({
    "diff", "glu", "gradient", "logcumsumexp", "logsumexp", "max_pool1d", "max_pool2d",
    "max_pool3d", "prelu", "scale",
})  # fmt: skip
"""Ops of these groups that read other elements, or have weights."""
CHOICES = frozenset({"masked_fill", "where"})
"""Canonical names of ops that choose between values by a condition.

They are functions of one number if the condition and the values are."""
BESIDE = ELEMENTWISE | {"comparison", "factory", "metadata", "rounding", "selection"}
"""Groups of ops that compute conditions of one number, or constants of its shape."""
STATISTICS = frozenset({"mean", "sum", "var"})
"""Ops that compute statistics, which a region may use inside."""


@dataclass(frozen=True)
class Edge:
    """A value as one unit uses it.

    Attributes:
        value: The value.
        unit: Name of the unit.
        index: Index of the operand; -1 for all uses by a region together.
    """

    value: str
    unit: str
    index: int


@dataclass(frozen=True)
class Unit:
    """One op, or a region of them.

    Attributes:
        name: Name of the last op.
        ops: The ops, in program order.
        edges: What it reads that has a gradient.
        results: What it makes that has a gradient.
        is_region: Whether it is a function of one tensor, elementwise or of rows.
        has_statistic: Whether it computes a statistic inside.
        is_of_loss: Whether it is a part of the loss, which stays as it was written: it
            makes scalars of scalars, or :mod:`amprewrite.unit_scaling.graph.loss` says.
    """

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    results: tuple[str, ...]
    is_region: bool = False
    has_statistic: bool = False
    is_of_loss: bool = False


def find_units(
    live: Differentiable, elementwise: frozenset[str] = frozenset()
) -> tuple[Unit, ...]:
    """Return the units of a program, in program order of their last ops.

    Args:
        live: The differentiable part of the program.
        elementwise: Names of ops that compute each element by itself, whatever their
            group: functions that a reader has found.
    """
    exits, roots = _settle(live, elementwise)
    members: dict[str, list[Op]] = defaultdict(list)
    for op in live.ops:
        if op.name in exits:
            members[exits[op.name]].append(op)
    units: list[Unit] = []
    for op in live.ops:
        if op.name not in exits:
            edges = [Edge(op.operands[i], op.name, i) for i in live.operands(op)]
            results = [name for name in op.results if name in live.values]
            scalars = _are_scalars(live, (*(edge.value for edge in edges), *results))
            units.append(
                Unit(
                    op.name,
                    (op,),
                    tuple(edges),
                    tuple(results),
                    is_of_loss=scalars,
                )
            )
        elif exits[op.name] == op.results[0]:
            inside = tuple(members[op.results[0]])
            edge = Edge(roots[op.name], op.name, -1)
            statistic = any(o.canonical in STATISTICS for o in inside)
            scalars = _are_scalars(live, (edge.value, *op.results))
            units.append(
                Unit(op.name, inside, (edge,), op.results, True, statistic, scalars)
            )
    return tuple(units)


def _are_scalars(live: Differentiable, names: tuple[str, ...]) -> bool:
    return all(not live.graph.values[name].shape for name in names)


def _settle(
    live: Differentiable, also: frozenset[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return for each op of a region its exit, and its root, both values.

    A value that is used inside a region and outside becomes a root of its own, and so
    does one that leads to two exits; a statistic that is used outside is no member.
    """
    barred, forced = set[str](), set[str]()
    while True:
        roots = _roots(live, barred, forced, also)
        exits, changed = _exits(live, roots, barred, forced)
        if not changed and not _bar_reductions(live, exits, roots, barred):
            return exits, roots


def _bar_reductions(
    live: Differentiable,
    exits: dict[str, str],
    roots: dict[str, str],
    barred: set[str],
) -> bool:
    """Bar the statistics of regions with a result of another shape than their root.

    Such a result is a statistic itself, as a negative mean is: it is handed on.

    Returns:
        Whether one was found.
    """
    shapes = {name: value.shape for name, value in live.graph.values.items()}
    found = {
        op.name
        for op in live.ops
        if op.name in exits
        and op.canonical in STATISTICS
        and shapes[exits[op.name]] != shapes[roots[op.name]]
    }
    barred |= found
    return bool(found)


def _roots(
    live: Differentiable, barred: set[str], forced: set[str], also: frozenset[str]
) -> dict[str, str]:
    """Return for each op that may be in a region the root that it depends on."""
    root_of = _roots_beside(live)
    found: dict[str, str] = {}
    for op in live.ops:
        if op.name in barred or not _is_of_one_number(live, op, also, root_of):
            continue
        roots = {root_of.get(name, name) for name in op.operands}
        if len(roots) == 1:
            found[op.name] = roots.pop()
            result = op.results[0]
            root_of[result] = result if result in forced else found[op.name]
    return found


def _roots_beside(live: Differentiable) -> dict[str, str]:
    """Return for each value that no gradient passes the live one that it is made of."""
    found: dict[str, str] = {}
    for op in live.graph.ops:
        if op.traits.group not in BESIDE or live.values.intersection(op.results):
            continue
        if not all(name in live.values or name in found for name in op.operands):
            continue
        roots = {found.get(name, name) for name in op.operands}
        if len(roots) == 1:
            found |= dict.fromkeys(op.results, roots.pop())
    return found


def _exits(
    live: Differentiable, roots: dict[str, str], barred: set[str], forced: set[str]
) -> tuple[dict[str, str], bool]:
    """Return the exit of each op, and whether a value or op was found to be apart."""
    exits: dict[str, str] = {}
    changed = False
    for op in reversed(live.ops):
        if op.name not in roots:
            continue
        result = op.results[0]
        users = [user for user, _ in live.graph.users[result]]
        inside = [u for u in users if roots.get(u.name) == roots[op.name]]
        outside = len(inside) < len(users) or result in live.graph.outputs
        reached = {exits[u.name] for u in inside if u.name in exits}
        if (outside or not inside) and op.canonical in STATISTICS:
            barred.add(op.name)
            changed = True
        elif (outside and inside) or len(reached) > 1:
            changed |= result not in forced
            forced.add(result)
        if result in forced or outside or not reached:
            exits[op.name] = result
        else:
            exits[op.name] = reached.pop()
    return exits, changed


def _is_of_one_number(
    live: Differentiable, op: Op, also: frozenset[str], beside: Mapping[str, str]
) -> bool:
    """Return whether an op computes each element, or a statistic, of its operands."""
    is_elementwise = op.name in also or (
        op.traits.group in ELEMENTWISE and op.canonical not in NOT_ELEMENTWISE
    )
    if not is_elementwise and op.canonical not in STATISTICS | CHOICES:
        return False
    known = live.values | beside.keys()
    if len(op.results) != 1 or not known.issuperset(op.operands):
        return False
    kinds = {live.graph.values[name].kind for name in op.operands}
    return "parameter" not in kinds or len(kinds) == 1
