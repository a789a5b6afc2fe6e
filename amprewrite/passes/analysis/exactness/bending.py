"""End exactness at ops that bend or bound their operands.

Behind an activation, a softmax or a normalisation an error of a value is no larger than
the value allows, whatever the size of what went in; and a network stands there, which
would be full as a whole if exactness went on. Such an op is known by a trait, or by the
call that it is a part of: ``softmax`` is ``exp`` and ``div`` in JAX. One that a model
spells out is known by its last step, a product in which a value scales itself:

- ``x * rsqrt(mean(x * x))``, by its own mean: a norm;
- ``x * sigmoid(x)``, by a bent function of its own: an activation;
- ``exp(x) / sum(exp(x))``, by its own sum: a softmax.

``log(1 + exp(x))``, a softplus, is known by the exponential behind its logarithm.

``x / norm(x)`` is none of them: directions are computed so, whose sines are taken.

What the test of a loop compares is exact through linear steps and norms alone, so that
it ends at curves, too: the size of a step in a solver is a power of the error, and the
error is a sum of what a network returns.
"""

from collections.abc import Iterator

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.ops.compounds import call_traits

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
