"""Slices: the ops between a value and another one that depends on it alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from amprewrite.frameworks.jaxpr.program.program import all_steps
from amprewrite.ir import Op
from amprewrite.ops import traits_of
from amprewrite.unit_scaling.graph import Differentiable
from amprewrite.unit_scaling.graph.units import ELEMENTWISE
from amprewrite.unit_scaling.jax.reading.program import Reading

PLAIN = ELEMENTWISE | {
    "comparison", "extremum", "factory", "log_exp", "mean", "metadata", "movement",
    "rounding", "selection", "sum",
}  # fmt: skip
"""Groups of ops that a function of rows may be made of."""
UNIFORM = ELEMENTWISE | {"comparison", "metadata", "selection"}
"""Groups of ops that make one number of one number."""
MOVES = frozenset({"cast", "enter", "expand", "permute", "reshape", "squeeze"})
"""Ops that hand a parameter on, in another shape."""
LONGEST = 60
"""Ops in a slice; functions that are known have at most 20."""


@dataclass(frozen=True)
class Slice:
    """Ops that compute one value from another one.

    Attributes:
        root: The value that they depend on.
        exit: Name of the last op.
        members: Names of the ops, the last one included, but for those that ops
            outside read as well. Those are no ops that gradients pass.
        gain: A value made of a parameter that they depend on as well; empty if none.
    """

    root: str
    exit: str
    members: frozenset[str]
    gain: str = ""


@dataclass
class Slicer:
    """Finds slices in one program."""

    reading: Reading
    live: Differentiable
    impure: frozenset[str] = field(init=False)
    uniform: frozenset[str] = field(init=False)
    passed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Find the values that depend on a gradient, and those of one number."""
        self.impure = frozenset(_impure(self.live))
        self.uniform = _uniform(self.reading)
        self.passed = frozenset(op.name for op in self.live.ops)

    def ending_at(self, last: Op) -> Iterator[Slice]:
        """Yield the slices that end at an op, the shortest one first."""
        graph = self.reading.graph
        members: set[str] = {last.name}
        frontier: set[str] = self._read(last)
        gain = ""
        while frontier and len(members) < LONGEST:
            if len(frontier) == 1:
                (root,) = frontier
                if root in self.live.values and self._is_closed(members, last):
                    used = {
                        name
                        for name in members
                        if name == last.name or self._is_inside(name, members)
                    }
                    yield Slice(root, last.name, frozenset(used), gain)
            latest = max(frontier, key=self._position)
            op = graph.producer.get(latest)
            side = self.is_parameter(latest) and len(frontier) > 1
            if side and not gain:
                gain = latest
                frontier.discard(latest)
                continue
            if op is None or side or not _is_plain(op) or op.region != last.region:
                return
            frontier.discard(latest)
            members.add(op.name)
            frontier |= self._read(op) - {gain}

    def is_parameter(self, name: str) -> bool:
        """Return whether a value is a parameter of one dimension, perhaps moved."""
        graph = self.reading.graph
        extents = [d for d in graph.values[name].shape if d != 1]
        if len(extents) > 1 or name not in self.live.values:
            return False
        return graph.values[self.origin(name)].kind == "parameter"

    def origin(self, name: str) -> str:
        """Return the value that another one is moved from."""
        graph = self.reading.graph
        while name in graph.producer:
            op = graph.producer[name]
            if op.canonical not in MOVES or len(op.operands) != 1:
                break
            name = op.operands[0]
        return name

    def _read(self, op: Op) -> set[str]:
        return {name for name in op.operands if name in self.impure}

    def _position(self, name: str) -> int:
        op = self.reading.graph.producer.get(name)
        return -1 if op is None else self.reading.graph.position[op.name]

    def _is_closed(self, members: set[str], last: Op) -> bool:
        """Return whether members alone use the values with a gradient."""
        return all(
            user.name in members or user.name not in self.passed
            for name in members
            if name != last.name
            for result in self.reading.graph.op_by_name[name].results
            if result in self.live.values
            for user, _ in self.reading.graph.users[result]
        ) and not any(
            result in self.live.outputs
            for name in members
            if name != last.name
            for result in self.reading.graph.op_by_name[name].results
        )

    def _is_inside(self, name: str, members: set[str]) -> bool:
        graph = self.reading.graph
        return all(
            result not in graph.outputs
            and all(user.name in members for user, _ in graph.users[result])
            for result in graph.op_by_name[name].results
        )


def is_elementwise(reading: Reading, op: Op) -> bool:
    """Return whether an op is a custom JVP function of elementwise ops."""
    if op.native != "custom_jvp_call":
        return False
    groups = {traits_of(name).group for name in reading.inside[op.name]}
    return groups <= UNIFORM | {"movement"}


def _is_plain(op: Op) -> bool:
    is_rule = op.native == "custom_jvp_call"
    return (is_rule or op.traits.group in PLAIN) and not op.fence


def _impure(live: Differentiable) -> set[str]:
    """Return the values that depend on one with a gradient."""
    found = set(live.values)
    for op in live.graph.ops:
        if found.intersection(op.operands):
            found |= set(op.results)
    return found


def _uniform(reading: Reading) -> frozenset[str]:
    """Return the values that are one number everywhere, made of numbers alone."""
    found: set[str] = set()
    for step in all_steps(reading.program.steps):
        op = reading.graph.op_by_name.get(step.name)
        if op is None or step.bodies or op.fence:
            continue
        if op.traits.group not in UNIFORM and op.canonical not in ("expand", "full"):
            continue
        if found.issuperset(op.operands):
            found |= set(op.results)
    return frozenset(found)
