"""Ops that would become full beside those that are kept full, though nothing needs it.

An op of class promote runs in the widest dtype of its operands, and one that moves data
hands that on. So an op that is kept full would take others with it up to the next
contractions: in a recurrent network, nearly all of every later step. Backwards, an op
of which only full ops read the result is demanded full, and so are the ones before it:
all of an activation that is written out. Rules that let the first of them be low, in
both directions, end that. One cast of a value serves all its readers.
"""

from collections.abc import Collection, Iterator

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan import Decision, Plan
from amprewrite.policy import OpClass


def held(plan: Plan, graph: ProgramGraph, kept: Collection[str]) -> tuple[str, ...]:
    """Return the ops to let be low so that no others become full, in program order.

    They run low in the plan, and would be full once ``kept`` are: they read a value
    that is full then, directly or moved, or their own are only read in full then.

    Args:
        plan: The plan of the converted program.
        graph: The program.
        kept: Names of ops that will be kept full.
    """
    spread = _Spread(plan, graph, frozenset(kept))
    found = {*spread.forward(), *spread.backward()}
    return tuple(op.name for op in graph.ops if op.name in found)


class _Spread:
    """The values that become full, followed through a program.

    Args:
        plan: The plan of the converted program.
        graph: The program.
        kept: Names of ops that will be kept full.
    """

    def __init__(self, plan: Plan, graph: ProgramGraph, kept: frozenset[str]) -> None:
        self.plan, self.graph, self.kept = plan, graph, kept
        self.wanted = self._wanted()

    def forward(self) -> Iterator[str]:
        """Yield the first ops on each way from the kept ones that can be low."""
        full: set[str] = set()
        for op in self.graph.ops:
            decision = self.plan.by_op[op.name]
            if op.name in self.kept:
                full.update(op.results)
            elif full.isdisjoint(op.operands) or not self._is_low(decision):
                continue
            elif self._is_written(op):  # it has the dtype of the storage
                full.update(op.results)
            elif self._is_promoted(decision) or self._is_moved(op, decision):
                yield op.name
            elif decision.op_class != OpClass.ALLOW:
                full.update(op.results)

    def backward(self) -> Iterator[str]:
        """Yield the first ops on each way back from the kept ones that can be low."""
        low = set[str]()  # values that are read low, moved or not
        near = set[str]()  # values that kept ops read, moved or not
        for op in reversed(self.graph.ops):
            decision = self.plan.by_op[op.name]
            is_read = not near.isdisjoint(op.results) and low.isdisjoint(op.results)
            if op.name in self.kept or (is_read and self._moves(decision)):
                near.update(op.operands)
                continue
            read = zip(op.operands, decision.operands, strict=False)
            low.update(name for name, dtype in read if dtype == self.plan.low)
            free = self._is_promoted(decision) and not self._is_written(op)
            if is_read and free and self._is_low(decision):
                yield op.name

    def _is_low(self, decision: Decision) -> bool:
        return self.plan.low in (decision.precision, *decision.results)

    def _is_promoted(self, decision: Decision) -> bool:
        """Return whether a rule would change the class promote of an op."""
        is_promote = decision.op_class == OpClass.PROMOTE
        return is_promote and decision.reason.is_overridable

    def _is_moved(self, op: Op, decision: Decision) -> bool:
        """Return whether an op moves values, may be low, and nothing reads it full."""
        if not (decision.reason.is_overridable and self._moves(decision)):
            return False
        return self.wanted.isdisjoint(op.results)

    def _is_written(self, op: Op) -> bool:
        """Return whether an op makes or views a storage that is written in place."""
        return any(self.graph.storage(n) in self.graph.written for n in op.results)

    def _moves(self, decision: Decision) -> bool:
        return decision.op_class == OpClass.FOLLOW

    def _wanted(self) -> set[str]:
        """Return the values that an op or an output reads in full, moved or not."""
        outputs = zip(self.graph.outputs, self.plan.outputs, strict=False)
        wanted = {name for name, dtype in outputs if dtype == self.plan.full}
        for op in reversed(self.graph.ops):
            decision = self.plan.by_op[op.name]
            if op.name in self.kept:
                wanted.update(op.operands)
            elif self._moves(decision):
                if not wanted.isdisjoint(op.results):
                    wanted.update(op.operands)
            else:
                read = zip(op.operands, decision.operands, strict=False)
                wanted.update(n for n, dtype in read if dtype == self.plan.full)
        return wanted
