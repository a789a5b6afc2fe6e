"""Demand analysis, backwards: the precision that the users of each value need.

``any < full < tested < exact``. A deny op demands full of its operands, so ``x * x``
under a mean is computed in full instead of being rounded first: a fast-variance layer
norm after a bias of 100 had relative error 610 without demand and 2.9e-3 with it.

A periodic or stepping op demands exact: the ops that compute its argument are never
lowered. Exactness goes back through every op, sums and contractions too, round the
carries of loops and into the bodies of custom rules, and ends where an op bends what it
reads (:class:`Bending`). A float that the test of a loop compares is *tested*: the
same, but it ends at curves, too. A loop that waits until a residual is small waits
forever for one that is rounded.

``mean(x * x) - mean(x) ** 2`` of low means is noise. Where a policy lets statistics
return low (class accumulate), they do so only for users that do not demand full.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter

from amprewrite.dtypes import is_float
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.ops.compounds import call_traits
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.values import extreme_values
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, DENY, FOLLOW, KEEP, PROMOTE


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


# End exactness at ops that bend or bound their operands.
#
# Behind an activation, a softmax or a normalisation an error of a value is no larger
# than the value allows, whatever the size of what went in; and a network stands there,
# which would be full as a whole if exactness went on. Such an op is known by a trait,
# or by the call that it is a part of: ``softmax`` is ``exp`` and ``div`` in JAX. One
# that a model spells out is known by its last step, a product in which a value scales
# itself:
#
# - ``x * rsqrt(mean(x * x))``, by its own mean: a norm;
# - ``x * sigmoid(x)``, by a bent function of its own: an activation;
# - ``exp(x) / sum(exp(x))``, by its own sum: a softmax.
#
# ``log(1 + exp(x))``, a softplus, is known by the exponential behind its logarithm.
#
# ``x / norm(x)`` is none of them: directions are computed so, whose sines are taken.
#
# What the test of a loop compares is exact through linear steps and norms alone, so
# that it ends at curves, too: the size of a step in a solver is a power of the error,
# and the error is a sum of what a network returns.

NEAR = 4
"""Number of steps within which a value and its scale have a source in common."""

FAR = 24
"""Largest number of ops that compute a scale."""


class Bending:
    """The ops of a program at which exactness ends, asked one by one."""

    def __init__(self, graph: ProgramGraph) -> None:
        """Begin with none.

        Args:
            graph: The program.
        """
        self.graph = graph
        self._known: dict[str, bool] = {}

    def curves(self, op: Op) -> bool:
        """Return whether ``op`` is a curve, other than the root in a norm."""
        return op.traits.curves and not self._is_norm(op)

    def _is_norm(self, op: Op) -> bool:
        """Return whether ``op`` is the root of a sum, scaled and moved."""
        root = op.canonical == "sqrt" or tuple(op.literals) == (0.5,)
        edge = list(self._floats(op)) if root else []
        for _ in range(NEAR):
            makers = [m for name in edge if (m := self.graph.producer.get(name))]
            if any(_is_sum(maker) for maker in makers):
                return True
            steps = [m for m in makers if m.traits.group in _STEPS]
            edge = [n for m in steps if not m.traits.curves for n in self._floats(m)]
        return False

    def at(self, op: Op) -> bool:
        """Return whether exactness ends at ``op``."""
        known = self._known.get(op.name)
        if known is None:
            known = self._known[op.name] = self._ends(op)
        return known

    def _ends(self, op: Op) -> bool:
        if op.traits.bends:
            return True
        if any(call_traits(call).bends for call in op.calls):
            return True
        if op.traits.group == Group.LOGARITHM:
            return any(self._has_exponential(self._near(n)) for n in self._floats(op))
        return op.traits.scales and self._scales_itself(op)

    def _scales_itself(self, op: Op) -> bool:
        names = list(self._floats(op))
        if len(names) != 2:  # noqa: PLR2004  # a value and its scale
            return False
        pairs = [tuple(names), tuple(reversed(names))]
        ways = pairs if op.canonical == "mul" else pairs[:1]
        return any(self._is_own_scale(value, scale) for value, scale in ways)

    def _is_own_scale(self, value: str, scale: str) -> bool:
        """Return whether ``scale`` is a mean, a bend or the sum of ``value``."""
        near = self._near(value)
        makers, meets = self._makers(scale, near)
        if not meets:
            return False
        bent = any(op.traits.bends for op in makers)
        sums = any(op.traits.first_moment for op in makers)
        divided = any(op.traits.scales and _is_by_number(op) for op in makers)
        mean = any(op.traits.group == Group.MEAN for op in makers) or (sums and divided)
        return bent or mean or (sums and self._has_exponential(near))

    def _has_exponential(self, names: set[str]) -> bool:
        """Return whether an exponential makes one of the values."""
        makers = (self.graph.producer.get(name) for name in names)
        return any(m.traits.group == Group.EXPONENTIAL for m in makers if m)

    def _near(self, value: str) -> set[str]:
        """Return ``value`` and the values from which a few linear steps lead to it."""
        near, edge = {value}, [value]
        for _ in range(NEAR):
            makers = (self.graph.producer.get(name) for name in edge)
            steps = [op for op in makers if op and op.traits.group in _STEPS]
            edge = [name for op in steps for name in self._floats(op)]
            near.update(edge)
        return near

    def _makers(self, scale: str, near: set[str]) -> tuple[list[Op], bool]:
        """Return the ops that make ``scale``, and whether they read a value nearby."""
        makers: dict[str, Op] = {}
        waiting, meets = [scale], False
        while waiting and len(makers) < FAR:
            name = waiting.pop()
            maker = self.graph.producer.get(name)
            if name in near:
                meets = True
            elif maker is not None and maker.name not in makers:
                makers[maker.name] = maker
                sums_products = maker.contracted is not None or maker.accumulates
                waiting += () if sums_products else self._floats(maker)
        return list(makers.values()), meets

    def _floats(self, op: Op) -> Iterator[str]:
        return (name for name in op.operands if self.graph.values[name].is_float)


_STEPS = (Group.MOVEMENT, Group.POINTWISE, Group.EXPONENTIAL)
"""Groups of steps between a value and its scale, or between a sum and its root."""


def _is_sum(op: Op) -> bool:
    """Return whether ``op`` makes a square, a sum or a product of vectors."""
    squares = op.traits.group == Group.SQUARE
    return squares or op.traits.first_moment or op.contracted is not None


def _is_by_number(op: Op) -> bool:
    return len(op.operands) == 1


# Find the comparisons of floats that decide if a loop goes on.
#
# The test of a loop may make the comparison itself, or read a truth value that the body
# made, or an integer that was chosen by one. It is followed back through what makes
# truth values, chooses and moves; arithmetic on integers ends it, so that a counter of
# steps asks nothing of what it counts, and so does the place of the greatest number. A
# single truth value that the program returns is such a test, too, of a loop outside of
# it.

_PASSING = (Group.CAST, Group.MOVEMENT, Group.SELECTION)
"""Groups of ops that pass on a truth value, or an integer chosen by one."""

_TWO = 2
"""Number of values that a comparison has; ``isfinite`` has one."""


def find_loop_tests(graph: ProgramGraph) -> frozenset[str]:
    """Return the names of the comparisons of floats that end loops."""
    outputs = ((name, graph.values[name]) for name in graph.outputs)
    alone = {name for name, v in outputs if v.dtype == "bool" and not v.shape}
    waiting = [op for op in graph.ops if op.decides or not alone.isdisjoint(op.results)]
    if not waiting:
        return frozenset()
    before = {value: op for op in graph.ops for value in op.turns}
    found: set[str] = set()
    known: set[str] = set()
    while waiting:
        op = waiting.pop()
        if op.name in known:
            continue
        known.add(op.name)
        compares = op.traits.group == Group.COMPARISON
        floats = any(graph.values[name].is_float for name in op.operands)
        if compares and floats and len(op.operands) + len(op.literals) >= _TWO:
            found.add(op.name)
        waiting += _makers(graph, op)
        waiting += (before[name] for name in op.results if name in before)
    return frozenset(found)


def _makers(graph: ProgramGraph, op: Op) -> Iterator[Op]:
    """Yield the ops that made the truth values and integers that ``op`` passes on."""
    values = graph.values
    passes = op.canonical in REGION_BOUNDARIES or op.traits.group in _PASSING
    if not passes and any(values[name].dtype != "bool" for name in op.results):
        return
    for name in op.operands:
        maker = graph.producer.get(name)
        if maker is not None and not values[name].is_float:
            yield maker


# Find differences between a value and its own mean, which cancel digits.
#
# ``x - mean(x)`` loses the digits that both share, so that a rounding of ``x`` grows by
# the square of the mean over the deviation. In a norm, demand sees this, because it
# sums the squares of the difference; not so in the backward pass of one, where the
# difference feeds a contraction. The gradient of ``var(x @ w + 100)``, converted after
# differentiation, had relative error 0.1 without this rule and 5e-3 with it.


def find_centring(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the subtractions of a statistic of a value from that value."""
    chaser = _Chaser(graph, classes)
    return frozenset(
        op.name
        for op in graph.ops
        if op.canonical == "sub" and len(op.operands) > 1 and chaser.centres(op)
    )


class _Chaser:
    def __init__(self, graph: ProgramGraph, classes: Mapping[str, Match]) -> None:
        self.graph, self.classes = graph, classes

    def centres(self, op: Op) -> bool:
        """Return whether one operand is a statistic of the other."""
        first, second = op.operands[:2]
        return self._is_statistic(second, first) or self._is_statistic(first, second)

    def _is_statistic(self, name: str, of: str) -> bool:
        """Return whether ``name`` is a statistic of ``of``, scaled and moved."""
        wanted = self._source(of)
        while (maker := self.graph.producer.get(name)) is not None:
            op_class = self.classes[maker.name].op_class
            sums = op_class is ACCUMULATE and maker.traits.first_moment
            if op_class is DENY or sums:
                return any(self._source(read) == wanted for read in maker.operands)
            moves = op_class is FOLLOW or maker.traits.scales
            if not moves or not maker.operands:
                return False
            name = maker.operands[0]
        return False

    def _source(self, name: str) -> str:
        """Return the value that ``name`` is a moved copy of."""
        while (maker := self.graph.producer.get(name)) is not None:
            moves = self.classes[maker.name].op_class is FOLLOW
            if not moves or not maker.operands:
                return name
            name = maker.operands[0]
        return name


# Find the values that a cast takes its dtype from: ``y.to(x.dtype)``.
#
# A second trace shows that a cast follows a dtype, but not of which value. ``type_as``
# names it; otherwise the cast ends a part in full precision that the model began itself
# (``x.float()``, or ``softmax(..., dtype=float32)``), and it returns to the dtype of
# the values that entered that part. A cast that ends no such part follows its own
# operand.

MOST = 8
"""Largest number of values that enter a full part; with more it is the whole model."""


def find_followed(
    graph: ProgramGraph,
    classes: Mapping[str, Match],
    demands: Demands,
    weights: Container[str],
    low: str,
) -> dict[str, tuple[str, ...]]:
    """Return the values that each cast follows, by the name of the cast.

    A cast that follows none has a full result: it converts integers, which low
    precision may not represent, or a constant beyond its range.

    Args:
        graph: The program.
        classes: Class of every op.
        demands: Demand on every value.
        weights: Values that are weights, moved about.
        low: The low dtype.
    """
    casts = [op for op in graph.ops if _follows(op, classes) and not op.fence]
    if not casts:
        return {}
    finder = _Finder(graph, classes, demands, weights)
    extreme = extreme_values(graph, classes, low)
    found: dict[str, tuple[str, ...]] = {}
    for op in casts:
        source, *given = op.operands
        values = given or finder.stands_for(source) or [source]
        safe = source not in extreme and graph.values[source].is_float
        found[op.name] = tuple(values) if safe else ()
    return found


def _follows(op: Op, classes: Mapping[str, Match]) -> bool:
    return op.canonical == USER_CAST and classes[op.name].op_class is OpClass.FOLLOW


class _Finder:
    """Finder of the values that entered each part in full precision."""

    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        demands: Demands,
        weights: Container[str],
    ) -> None:
        self.graph, self.classes = graph, classes
        self.demands, self.weights = demands, weights
        self.entered: dict[str, frozenset[str]] = {}
        for op in graph.ops:
            found = self._entered(op)
            if 0 < len(found) <= MOST:
                self.entered.update(dict.fromkeys(op.results, found))

    def stands_for(self, source: str) -> list[str]:
        """Return the entered values of ``source``'s part that the cast follows.

        Weights and inputs, such as a mask, may enter beside computed values.
        """
        found = sorted(self.entered.get(source, ()))
        moving = [name for name in found if name not in self.weights]
        made = [name for name in moving if self.graph.values[name].kind == "result"]
        return made or moving or found

    def _entered(self, op: Op) -> frozenset[str]:
        floats = self._floats(op)
        if op.dtype_argument and op.chosen == "pinned" and floats:
            inside = self.entered.get(floats[0])  # a cast of a value that is full
            return inside or frozenset(self._source(floats[0]))
        left = self.classes[op.name].op_class is OpClass.ALLOW
        if left or _follows(op, self.classes):
            return frozenset()
        return frozenset[str]().union(
            *(self.entered.get(name, ()) for name in op.operands)
        )

    def _source(self, name: str) -> Iterator[str]:
        """Yield ``name``, or its producer's operands if the part made it full."""
        maker = self.graph.producer.get(name)
        wanted = self.demands.on(name) is Demand.FULL
        if maker is None or not wanted or not self._computes(maker):
            yield name
            return
        for operand in self._floats(maker):
            yield from self._source(operand)

    def _computes(self, op: Op) -> bool:
        op_class = self.classes[op.name].op_class
        cheap = op_class in (OpClass.PROMOTE, OpClass.FOLLOW)
        follows = _follows(op, self.classes)
        return cheap and bool(self._floats(op)) and not follows

    def _floats(self, op: Op) -> list[str]:
        return [name for name in op.operands if self.graph.values[name].is_float]
