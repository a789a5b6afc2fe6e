"""Units of scaling: single ops, and elementwise regions with one root.

A maximal region of elementwise ops that depends on one tensor is a function of one
number, whatever ops it is written with. It gets one rule, and its input one factor.
Statistics inside (the mean square of a norm that is written out) belong to it too; it
is then a function of rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.placement.contractions import (
    CONTRACTIONS,
    residual_adds,
)

# The part of a program that gradients pass through.

STOPS = frozenset({
    "bernoulli", "binomial", "ceil", "detach", "fix", "floor", "floor_divide",
    "heaviside", "nextafter", "normal", "poisson", "rand_like", "randint_like",
    "randn_like", "round", "sgn", "sign", "trunc", "while",
})  # fmt: skip
"""Ops with a float result through which no gradient passes: steps, draws, loops."""

Closing = tuple[tuple[str, str], ...]
"""Pairs of values that are one: carry-out and carry-in of a loop."""


@dataclass(frozen=True)
class Differentiable:
    """Values and ops of a program that gradients pass.

    Attributes:
        graph: The program.
        values: Names of the values with a gradient, parameters and inputs among them.
        ops: Ops with an operand and a result of these, in program order.
        outputs: Values at which gradients enter.
    """

    graph: ProgramGraph
    values: frozenset[str]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    def operands(self, op: Op) -> list[int]:
        """Return the indices of the operands of an op that get a gradient."""
        return [i for i, name in enumerate(op.operands) if name in self.values]


def differentiable(graph: ProgramGraph, closing: Closing = ()) -> Differentiable:
    """Return the values between float parameters or inputs, and the outputs.

    Where an output is a scalar it is a loss: gradients come from scalars alone. Float
    inputs count like parameters: somebody may want their gradient.

    Args:
        graph: The program.
        closing: Carries of its loops: what leaves a turn enters the next one.
    """
    reached = _reached(graph, closing)
    state = {position for position, _ in graph.states}
    written = [name for i, name in enumerate(graph.outputs) if i not in state]
    outputs = [name for name in dict.fromkeys(written) if name in reached]
    scalars = [name for name in outputs if not graph.values[name].shape]
    outputs = scalars or outputs
    wanted = set(outputs)
    while True:
        ops = _wanted(graph, reached, wanted)
        before = {a for a, b in closing if a in reached and b in wanted}
        if before <= wanted:
            break
        wanted |= before
    return Differentiable(
        graph, frozenset(wanted & reached), tuple(reversed(ops)), tuple(outputs)
    )


def _stops(op: Op) -> bool:
    """Return whether no gradient passes an op; factories of tensors are such."""
    return op.canonical in STOPS or op.traits.group == "factory"


def _reached(graph: ProgramGraph, closing: Closing) -> set[str]:
    """Return the float values that depend on a float parameter or input."""
    reached = {v.name for v in graph.inputs("parameter", "input") if v.is_float}
    while True:
        for op in graph.ops:
            if not _stops(op) and reached.intersection(op.operands):
                reached |= {name for name in op.results if graph.values[name].is_float}
        after = {b for a, b in closing if a in reached and graph.values[b].is_float}
        if after <= reached:
            return reached
        reached |= after


def _wanted(graph: ProgramGraph, reached: set[str], wanted: set[str]) -> list[Op]:
    """Return the ops that lead to ``wanted``, the last one first, and add to it."""
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if _stops(op) or not wanted.intersection(op.results):
            continue
        used = reached.intersection(op.operands)
        if used and reached.intersection(op.results):
            wanted |= used
            ops.append(op)
    return ops


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
            makes scalars of scalars, or :func:`mark_loss` says.
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


# The loss of a program: the ops after its last contraction, where it ends in scalars.
#
# A loss is compared with others, weighed and logged, so that its ops keep their values.
# Only gradients get factors there.

_PAIR = 2


def mark_loss(
    live: Differentiable, units: Sequence[Unit], closing: Closing = ()
) -> tuple[Unit, ...]:
    """Return the units, those of the loss marked.

    The network ends where nothing that follows contracts, joins a parameter with other
    values, adds a residual branch, or sums products of two values that contractions
    made. A unit that leads to none of these is a part of the loss: what follows, what
    targets go through, and penalties, which depend on parameters alone. Nothing is
    marked where the program returns no scalar, and penalties alone where it has no
    contraction.

    Args:
        live: The differentiable part of the program, with functions as single ops.
        units: Its units.
        closing: Carries of its loops.
    """
    shapes = {name: value.shape for name, value in live.graph.values.items()}
    if any(shapes[name] for name in live.outputs):
        return tuple(units)
    parts = _Parts(live, units, closing)
    inside = parts.before(unit for unit in units if parts.is_network(unit))
    return tuple(
        replace(unit, is_of_loss=True)
        if unit.name not in inside and (inside or parts.is_penalty(unit))
        else unit
        for unit in units
    )


@dataclass
class _Parts:
    """The units of one program, with the values that depend on data."""

    live: Differentiable
    units: Sequence[Unit]
    closing: Closing
    made_by: dict[str, Unit] = field(init=False)
    of_data: set[str] = field(init=False)
    sums: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Find the values that depend on data, and residual additions."""
        self.made_by = {name: unit for unit in self.units for name in unit.results}
        self.of_data = self._values_of_data()
        self.sums = frozenset(add.op.name for add in residual_adds(self.live.graph))

    def _values_of_data(self) -> set[str]:
        """Return the values that depend on inputs, integers among them.

        A function without inputs has its data in constants.
        """
        graph = self.live.graph
        found = {value.name for value in graph.inputs("input")}
        made = set(graph.producer) | {v.name for v in graph.inputs("parameter")}
        found = found or set(graph.values) - made
        while True:
            for op in graph.ops:
                if found.intersection(op.operands):
                    found.update(op.results)
            entered = {b for a, b in self.closing if a in found}
            if entered <= found:
                return found
            found |= entered

    def is_penalty(self, unit: Unit) -> bool:
        """Return whether a unit depends on parameters alone."""
        return self.of_data.isdisjoint(unit.results)

    def is_network(self, unit: Unit) -> bool:
        """Return whether a unit is one with which the network may end."""
        last = unit.ops[-1]
        if len(unit.edges) < _PAIR:
            return last.canonical == "sum" and self._sums_products(unit)
        if self.is_penalty(unit):
            return False
        if last.traits.group in CONTRACTIONS or last.name in self.sums:
            return True
        graph = self.live.graph
        values = [graph.values[edge.value] for edge in unit.edges]
        kinds = {value.kind == "parameter" for value in values if value.shape}
        return len(kinds) > 1

    def _sums_products(self, unit: Unit) -> bool:
        """Return whether a sum is one of products of values of two contractions.

        Both factors of an entropy, sum(p log p), are functions of the same logits.
        """
        made = self.live.graph.producer.get(unit.edges[0].value)
        if made is None or made.canonical != "mul":
            return False
        factors = {name for name in made.operands if name in self.live.values}
        sources = [self._contractions(name) for name in factors]
        return len(sources) == _PAIR and all(sources) and sources[0] != sources[1]

    def _contractions(self, name: str) -> set[str]:
        """Return the contractions nearest to a value, of all that it depends on."""
        found, seen, waiting = set[str](), set[str](), [name]
        while waiting:
            made = self.made_by.get(waiting.pop())
            if made is None or made.name in seen:
                continue
            seen.add(made.name)
            if len(made.edges) >= _PAIR and self.is_network(made):
                found.add(made.name)
            else:
                waiting += [edge.value for edge in made.edges]
        return found

    def before(self, last: Iterable[Unit]) -> set[str]:
        """Return the names of units, and of all that they depend on."""
        entered = {entered: left for left, entered in self.closing}
        found, waiting = set[str](), list(last)
        while waiting:
            unit = waiting.pop()
            if unit.name in found:
                continue
            found.add(unit.name)
            for edge in unit.edges:
                names = (edge.value, entered.get(edge.value, ""))
                waiting += [
                    self.made_by[name] for name in names if name in self.made_by
                ]
        return found
