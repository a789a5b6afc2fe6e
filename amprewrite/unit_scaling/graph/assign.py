"""From the rules of units to a scale plan: the cut-edge rule, and residual branches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from amprewrite.passes.placement.contractions import residual_adds
from amprewrite.unit_scaling.constraints import CONSTRAINTS, apply_constraint
from amprewrite.unit_scaling.graph.scales import OUTPUT, Scale, ScalePlan, resolve
from amprewrite.unit_scaling.graph.units import Closing, Differentiable, Edge, Unit
from amprewrite.unit_scaling.rules import Rule, gate_factor, varies
from amprewrite.unit_scaling.rules import residual as residual_factors

if TYPE_CHECKING:
    import networkx as nx


# The rule of a unit: its factors before any constraint; that of a region.


@dataclass(frozen=True)
class UnitRule:
    """The factors of one unit before any constraint.

    Attributes:
        forward: Factor of each result.
        backward: Factor of the gradient of each input, by :attr:`Edge.index`; 1 where
            an index is missing.
        kind: Source of the rule.
        why: What that is based on.
        mult: Multiplier m of an op f: it computes f(mx)/m.
        undone: Whether the result is divided by the multiplier again.
        fixed: Whether the forward factor must stay (a loss): a constraint that chooses
            another one does not apply.
        gate: Factor of a result that is only multiplied with others: that for root mean
            square 1, since its mean counts. None where it is ``forward``.
        inside: Factors of inputs that the op cannot have at its result, by index: those
            of the weights of a recurrent kernel, which it sums over inside.
        has_mean: Whether the mean of the result is larger than its deviation: it is
            between 0 and 1, as a sigmoid is, or positive.
    """

    forward: Any
    backward: Mapping[int, Any]
    kind: str
    why: str = ""
    mult: float = 1.0
    undone: bool = True
    fixed: bool = False
    gate: Any = None
    has_mean: bool = False
    inside: Mapping[int, float] = field(default_factory=dict[int, float])


def of_region(rule: Rule, why: str, *, named: bool) -> UnitRule:
    """Return the factors of a region.

    Its output gets standard deviation 1, and root mean square 1 where it hardly varies
    and has no name: that is a gain.

    Args:
        rule: The rule of the function, with its moments.
        why: What the rule is based on.
        named: Whether the function has a name, and with it the convention.
    """
    moments = rule.moments
    forward, gate, has_mean = rule.factors.forward, None, False
    if moments is not None:
        gate, has_mean = gate_factor(moments), abs(moments.mean) > moments.std
        forward = forward if named or varies(moments) else gate
    backward = {-1: rule.factors.backward["input"]}
    return UnitRule(
        forward, backward, rule.kind, why, rule.mult, gate=gate, has_mean=has_mean
    )


# Cut edges: where a gradient may have a factor of its own.
#
# They are the bridges of the undirected differentiable graph. Its nodes are values,
# parameters and inputs among them, and units; each use of a value is an edge of its
# own, so that a table that is used twice, or a product of a value with itself, is no
# bridge.

OUTSIDE = ("outside", "")
"""Node that joins the outputs, where there are several: their gradients are given."""


def network(
    live: Differentiable,
    units: Sequence[Unit],
    closing: Iterable[tuple[str, str]] = (),
) -> "nx.MultiGraph[Any]":
    """Return the undirected differentiable graph.

    Args:
        live: The differentiable part of the program.
        units: Its units.
        closing: Pairs of values that are one: carry-out and carry-in of a loop.
    """
    import networkx as nx  # noqa: PLC0415  # slow to load

    found: nx.MultiGraph[Any] = nx.MultiGraph()
    found.add_nodes_from(("value", name) for name in live.values)
    for unit in units:
        for edge in unit.edges:
            found.add_edge(("value", edge.value), ("unit", unit.name))
        for result in unit.results:
            found.add_edge(("unit", unit.name), ("value", result))
    if len(live.outputs) > 1:
        found.add_edges_from((("value", name), OUTSIDE) for name in live.outputs)
    found.add_edges_from((("value", a), ("value", b)) for a, b in closing)
    return found


def cut_edges(
    live: Differentiable,
    units: Sequence[Unit],
    closing: Iterable[tuple[str, str]] = (),
) -> frozenset[Edge]:
    """Return the edges from values to units that are bridges; see :func:`network`."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    found = network(live, units, closing)
    bridges = {frozenset(pair) for pair in nx.bridges(found)}
    return frozenset(
        edge
        for unit in units
        for edge in unit.edges
        if frozenset((("value", edge.value), ("unit", unit.name))) in bridges
    )


# Residual additions: a sum of a value and of a branch that was computed from it.


@dataclass(frozen=True)
class Residual:
    """One residual addition.

    Attributes:
        unit: Name of the addition.
        branch: Index of the operand that the branch made.
        skip: Index of the other one.
        entries: Uses by which the branch starts from the skip, where nothing else leads
            in or out: gradients get the weight of the branch there. Empty where the
            branch is joined with others; the weight then stands at the sum both ways.
    """

    unit: str
    branch: int
    skip: int
    entries: tuple[Edge, ...] = ()


def find_residuals(
    live: Differentiable,
    units: Sequence[Unit],
    cut: frozenset[Edge],
    closing: Closing = (),
) -> tuple[Residual, ...]:
    """Return the residual additions of a program through which gradients pass.

    Args:
        live: The differentiable part of the program.
        units: Its units.
        cut: Its cut edges.
        closing: Carries of its loops.
    """
    uncut = network(live, units, closing)
    uncut.remove_edges_from(
        [(("value", edge.value), ("unit", edge.unit)) for edge in cut]
    )
    adds = {add.op.name: add for add in residual_adds(live.graph)}
    found: list[Residual] = []
    for unit in units:
        add = adds.get(unit.ops[-1].name)
        if add is None or unit.is_region or unit.is_of_loss:
            continue
        if len(unit.edges) != 2:  # noqa: PLR2004  # both operands
            continue
        entries = _entries(uncut.copy(), units, unit, add.branch, live.outputs)
        found.append(Residual(unit.name, add.branch, add.skip, entries))
    return tuple(found)


def _entries(
    graph: "nx.MultiGraph[Any]",
    units: Sequence[Unit],
    add: Unit,
    branch: int,
    outputs: Sequence[str],
) -> tuple[Edge, ...]:
    """Return the uses of the skip by the branch, if it is joined with nothing else."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    op = add.ops[-1]
    skip, made = ("value", op.operands[1 - branch]), ("value", op.operands[branch])
    graph.remove_edges_from([(made, ("unit", add.name))])
    graph.remove_node(skip)
    inside = nx.node_connected_component(graph, made)
    if ("unit", add.name) in inside:
        return ()
    if any(("value", name) in inside for name in outputs):
        return ()
    producers = [unit.name for unit in units if skip[1] in unit.results]
    if any(("unit", name) in inside for name in producers):
        return ()  # the branch also reads what the skip was computed from
    return tuple(
        edge
        for unit in units
        for edge in unit.edges
        if ("value", edge.value) == skip and ("unit", unit.name) in inside
    )


# Mixtures: sums of values that gates weigh, such as z * h + (1 - z) * n.
#
# A gate is between 0 and 1, and means that share of a value. Divided by its scale it
# would not, and what a recurrence keeps would grow at every step. A mixture with its
# gates as they were written has a scale near 1 already.

SUMS = frozenset({"add", "rsub", "sub"})
"""Canonical names of sums."""
AFFINE = SUMS | {"neg"}
"""Canonical names of the ops that a complement, 1 - z, is made of."""
MOVES = frozenset({"cast", "control", "metadata", "movement"})
"""Groups of ops that hand a gate on, into a loop too."""


def find_mixtures(
    units: Sequence[Unit], rules: Mapping[str, UnitRule]
) -> frozenset[str]:
    """Return the names of the units without a forward factor, gates and mixtures.

    They are sums with an operand that a gate is multiplied into, the gates of these,
    and gates of which there is a complement.

    Args:
        units: Units of the program.
        rules: Rule of each unit but the residual additions, by name.
    """
    found = _Gates(units, rules)
    kept = set[str]()
    for unit in units:
        if unit.name not in rules or unit.is_of_loss:
            continue
        if gate := found.complemented(unit):
            kept |= {unit.name, *gate}
        if unit.ops[-1].canonical in SUMS and not unit.is_region:
            gates = {g for edge in unit.edges for g in found.weighing(edge.value)}
            kept |= gates and {unit.name, *gates}
    return frozenset(kept)


@dataclass
class _Gates:
    """The units of one program, with those that make gates."""

    units: Sequence[Unit]
    rules: Mapping[str, UnitRule]
    made_by: dict[str, Unit] = field(init=False)

    def __post_init__(self) -> None:
        """Find the unit that makes each value."""
        self.made_by = {name: unit for unit in self.units for name in unit.results}

    def gates(self, value: str) -> set[str]:
        """Return the unit that makes a gate, with that of which it is a complement."""
        unit = self._source(value)
        if unit is None or not unit.is_region:
            return set()
        if inner := self.complemented(unit):
            return {unit.name, *inner}
        return {unit.name} if self.rules[unit.name].has_mean else set()

    def complemented(self, unit: Unit) -> set[str]:
        """Return the units of the gate of which a unit makes the complement."""
        if not unit.is_region or any(op.canonical not in AFFINE for op in unit.ops):
            return set()
        return self.gates(unit.edges[0].value)

    def weighing(self, value: str) -> Iterator[str]:
        """Yield the units of the gates that are multiplied into an operand of a sum."""
        product = self._source(value)
        if product is not None and product.ops[-1].canonical == "mul":
            for edge in product.edges if len(product.edges) > 1 else ():
                yield from self.gates(edge.value)

    def _source(self, value: str) -> Unit | None:
        """Return the unit that makes a value, before it is moved."""
        unit = self.made_by.get(value)
        while unit is not None and not unit.is_region and len(unit.edges) == 1:
            if unit.ops[-1].traits.group not in MOVES:
                break
            unit = self.made_by.get(unit.edges[0].value)
        return unit


# The factor of the gradient that enters a loss, where its paths are joined.
#
# The terms of a loss that share a network are no cut edges: their means cannot give
# gradients a factor each. The gradient of the whole loss can have one, which all share,
# and so can the gradients of several losses.

ALIKE = 64
"""Extent with which the factors of terms are compared: which term is the largest."""


def loss_gradient(
    units: Sequence[Unit],
    backward: Mapping[str, Mapping[int, Any]],
    cut: frozenset[Edge],
    outputs: Sequence[str],
) -> list[Scale]:
    """Return the scales of the gradients of losses; none where nothing is joined.

    The factor is the product of those that joined edges do not have, along the term
    that needs the least: its gradients have unit scale, and no others are larger. Of
    several outputs all have the same one, so that any sum of them has a true gradient:
    that of a total, where its terms are outputs too.

    Args:
        units: Units of the program, those of the loss marked.
        backward: Backward factors of the rules, by unit and index.
        cut: Cut edges, which have theirs.
        outputs: The losses.
    """
    wanted: dict[str, Any] = {}
    parts: dict[str, frozenset[str]] = {}
    makers = {name: unit for unit in units for name in unit.results}
    for unit in units:
        read = [edge for edge in unit.edges if edge.value in wanted]
        used = frozenset[str]().union(*(parts[edge.value] for edge in read))
        terms = [
            (1.0 if edge in cut else backward[unit.name].get(edge.index, 1.0))
            * wanted[edge.value]
            for edge in read
            if unit.is_of_loss
        ]
        for name in unit.results:
            if terms or not unit.is_of_loss:
                wanted[name] = min(terms, key=_size, default=1.0)
                parts[name] = used | {name} & set(outputs)
    if any(name not in makers or not makers[name].is_of_loss for name in outputs):
        return []
    nothing = frozenset[str]()
    inner = nothing.union(*(parts.get(name, nothing) - {name} for name in outputs))
    ends = [wanted.get(name, 1.0) for name in outputs if name not in inner]
    factor = min(ends, key=_size, default=1.0)
    if isinstance(factor, float) and factor == 1.0:
        return []
    why = "terms of the loss share what is before them"
    return [
        Scale(name, makers[name].name, OUTPUT, 1.0, factor, "closed form", why=why)
        for name in outputs
    ]


def _size(factor: Any) -> float:
    return float(resolve(factor, lambda _value, _dimension: ALIKE))


AUTO = "auto"
"""Name of the constraint that takes the forward factor where an edge is not cut."""

ROUNDING = 1e-9
"""A factor this near to 1 is 1: an integral has an error."""


def assign(  # noqa: PLR0913  # what was found, and how to scale
    units: Sequence[Unit],
    rules: Mapping[str, UnitRule],
    cut: frozenset[Edge],
    residuals: Sequence[Residual],
    outputs: Sequence[str] = (),
    *,
    constraint: str | None = AUTO,
    tau: float = 0.5,
) -> ScalePlan:
    """Return the factors of all units.

    Args:
        units: Units of the program.
        rules: Rule of each unit but the residual additions, by name.
        cut: Cut edges: their backward factors stay those of the rules.
        residuals: Residual additions.
        outputs: Values at which gradients enter.
        constraint: Chooses one factor for the forward pass and all edges that are no
            cut edges. ``auto`` and ``to_output_scale`` take the forward factor. One
            that joins another number of factors does not apply to a unit, which then
            takes the forward factor. None leaves every edge its own factor, so that
            gradients of joined paths are wrong.
        tau: Weight of residual branches; that of the skip is 1.

    Raises:
        UnitScalingError: The constraint is unknown.
    """
    found: list[Scale] = []
    sums = {residual.unit: residual for residual in residuals}
    kinds: dict[str, str] = {}
    gates, mixtures = _gates(units), find_mixtures(units, rules)
    for unit in units:
        if unit.name in sums:
            kinds[unit.name] = "residual"
            found += _weights(unit, sums[unit.name], tau)
        else:
            rule = rules[unit.name]
            kinds[unit.name] = rule.kind
            if unit.results and gates.issuperset(unit.results) and rule.gate:
                rule = replace(rule, forward=rule.gate)
            if unit.name in mixtures:
                rule = replace(rule, forward=1.0, undone=False, fixed=True)
            found += _factors(unit, rule, cut, constraint)
    if constraint is not None:
        backward = {name: rule.backward for name, rule in rules.items()}
        found += loss_gradient(units, backward, cut, outputs)
    scales = [s for s in found if not _is_one(s.forward) or not _is_one(s.backward)]
    edges = sum(len(unit.edges) for unit in units)
    return ScalePlan(tuple(scales), tuple(sums), kinds, edges, len(cut))


def _factors(
    unit: Unit, rule: UnitRule, cut: frozenset[Edge], constraint: str | None
) -> list[Scale]:
    """Return the factors of one unit under a constraint."""
    if unit.is_of_loss:  # its value is what the model says
        rule = replace(rule, forward=1.0, mult=1.0, fixed=True)
    forward = rule.forward
    own = {edge: rule.backward.get(edge.index, 1.0) for edge in unit.edges}
    joined = [edge for edge in unit.edges if edge not in cut] if constraint else []
    name = ""
    if joined:
        name = _applicable(constraint, rule, 1 + len(joined))
        forward, *_ = apply_constraint(name, forward, *(own[edge] for edge in joined))
        own |= dict.fromkeys(joined, forward)
    about, mult = (rule.kind, rule.why), rule.mult
    given = {edge: mult * rule.inside.get(edge.index, 1.0) for edge in own}
    after = mult if rule.undone else 1.0
    return [
        *(
            Scale(
                edge.value, unit.name, edge.index, given[edge], given[edge] * factor,
                about[0],
                name if edge in joined else "", edge in cut, about[1],
            )
            for edge, factor in own.items()
        ),
        *(
            Scale(value, unit.name, None, forward / after, 1 / after, about[0], name,
                  why=about[1])
            for value in unit.results
        ),
    ]  # fmt: skip


def _gates(units: Sequence[Unit]) -> set[str]:
    """Return the values that are only multiplied with others."""
    products, others = set[str](), set[str]()
    for unit in units:
        product = unit.ops[-1].canonical == "mul" and len(unit.edges) > 1
        (products if product else others).update(edge.value for edge in unit.edges)
    return products - others


def _applicable(constraint: str | None, rule: UnitRule, count: int) -> str:
    """Return the constraint that joins this number of factors."""
    if constraint in (AUTO, None) or rule.fixed:
        return "to_output_scale"
    joins, _ = CONSTRAINTS.get(constraint, (None, None))
    return "to_output_scale" if joins not in (None, count) else constraint


def _weights(unit: Unit, residual: Residual, tau: float) -> list[Scale]:
    """Return the factors of a residual addition.

    The weights stand at the sum, forward. Backward, that of the branch stands where the
    branch starts, so that gradients inside have unit scale.
    """
    weights = residual_factors(tau=tau).backward
    branch, skip = weights["branch"], weights["skip"]
    values = unit.ops[-1].operands
    why = f"tau {tau:g}"
    inside = 1.0 if residual.entries else branch
    return [
        *(
            Scale(edge.value, edge.unit, edge.index, 1.0, branch, "residual", why=why)
            for edge in residual.entries
        ),
        Scale(values[residual.branch], unit.name, residual.branch, branch, inside,
              "residual", why=why),
        Scale(values[residual.skip], unit.name, residual.skip, skip, skip,
              "residual", why=why),
    ]  # fmt: skip


def _is_one(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and abs(factor - 1) < ROUNDING
