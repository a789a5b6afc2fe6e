"""Placement ``paint``: the algorithm of TensorFlow's automatic mixed precision.

It is kept for comparison. It colours ops by reachability alone: ops between two low ops
are low, ops after one that must be full are full. Sizes are ignored.

Source: ``core/grappler/optimizers/auto_mixed_precision.cc`` of TensorFlow 2.21. Its
lists are our classes: allow, deny, infer (promote and accumulate) and clear (follow); a
keep op is on none of them, and stops the propagation. Step 4 is only done for bfloat16,
as there.
"""

from collections.abc import Callable, Iterable, Iterator

from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Assignment, Situation
from amprewrite.passes.placement.constraints import Freedom
from amprewrite.policy import OpClass

PAINTED: dict[Assignment, str] = {
    "low": "painted low: beside or between ops that run low",
    "full": "not painted low",
}
"""Text of the reason for each assignment."""

INFER = (OpClass.PROMOTE, OpClass.ACCUMULATE)
"""Classes that TensorFlow infers from their surroundings."""


def paint(situation: Situation, freedom: Freedom) -> dict[str, Assignment]:
    """Return the assignment of every assignable op by TensorFlow's algorithm.

    Args:
        situation: The facts before placement.
        freedom: The ops that can be assigned; pinned ones count as denied.
    """
    return _Painter(situation, freedom).run()


class _Painter:
    def __init__(self, situation: Situation, freedom: Freedom) -> None:
        self.at, self.freedom = situation, freedom
        self.graph = situation.graph
        self.allow = self._of(OpClass.ALLOW)
        self.deny = self._of(OpClass.DENY) | freedom.pinned.keys()
        self.allow -= self.deny
        self.infer = self._of(*INFER) - self.deny
        self.clear = self._of(OpClass.FOLLOW) - self.deny

    def _of(self, *classes: OpClass) -> set[str]:
        found = self.at.classes
        return {op.name for op in self.graph.ops if found[op.name].op_class in classes}

    def run(self) -> dict[str, Assignment]:
        self._spread_deny()
        self._fill_between()
        if self.at.policy.low == "bfloat16":
            self._infer_after_allow()
        for near in (self._before, self._after):
            self.allow |= self._reach(self.allow, near, self.clear - self.deny)
        assignments: dict[str, Assignment] = {
            name: "low" if name in self.allow else "full"
            for name in self.freedom.assignable
        }
        return self._tie(assignments)

    def _spread_deny(self) -> None:
        """Deny infer ops after a denied one, and clear ops on the way to them."""
        ends = self.deny | self.infer
        upstream = self._reach(ends, self._before, self.clear)
        self.deny |= self._reach(self.deny, self._after, upstream)
        self.allow -= self.deny

    def _fill_between(self) -> None:
        inside = (self.clear | self.infer) - self.deny
        after = self._reach(self.allow, self._after, inside)
        self.allow |= after & self._reach(self.allow, self._before, inside)

    def _infer_after_allow(self) -> None:
        for op in self.graph.ops:
            if op.name in self.infer and op.name not in self.deny:
                makers = {maker.name for maker in self._before(op)}
                if makers & self.allow and not makers & self.deny:
                    self.allow.add(op.name)

    def _tie(self, assignments: dict[str, Assignment]) -> dict[str, Assignment]:
        """Make ops full that are tied to a full one."""
        while not self.freedom.allows(assignments):
            for storage in self.freedom.wide_storages(assignments):
                members = self.freedom.members.get(storage, ())
                assignments.update(
                    (name, "full") for name in members if name in assignments
                )
            for name, makers in self.freedom.requires_low.items():
                full = any(assignments.get(maker, "full") == "full" for maker in makers)
                if full and name in assignments:
                    assignments[name] = "full"
        return assignments

    def _reach(
        self,
        roots: Iterable[str],
        near: Callable[[Op], Iterator[Op]],
        through: set[str],
    ) -> set[str]:
        """Return ``roots`` and the ops reached from them through given ops alone."""
        found = set(roots)
        waiting = [*found]
        while waiting:
            for op in near(self.graph.op_by_name[waiting.pop()]):
                if op.name in through and op.name not in found:
                    found.add(op.name)
                    waiting.append(op.name)
        return found

    def _before(self, op: Op) -> Iterator[Op]:
        for name in op.operands:
            maker = self.graph.producer.get(name)
            if maker is not None and self.graph.is_dtype(name, self.at.policy.full):
                yield maker

    def _after(self, op: Op) -> Iterator[Op]:
        for name in op.results:
            if self.graph.is_dtype(name, self.at.policy.full):
                for user, _ in self.graph.users[name]:
                    yield user
