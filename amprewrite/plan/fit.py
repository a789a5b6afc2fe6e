"""Whether a plan belongs to a program."""

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import ProgramGraph
from amprewrite.plan.model import Plan


def check_fits(graph: ProgramGraph, plan: Plan) -> None:
    """Make sure that ``plan`` was made for ``graph``.

    Raises:
        PlanMismatchError: Names the first op that differs.
    """
    for op, decision in zip(graph.ops, plan.decisions, strict=False):
        if (op.name, op.native) != (decision.op, decision.native):
            msg = (
                f"plan does not fit the program: the program has {op.name} "
                f"({op.native}) where the plan has {decision.op} ({decision.native}); "
                f"make a new plan with amprewrite.inspect"
            )
            raise PlanMismatchError(msg)
    have, want = len(plan.decisions), len(graph.ops)
    if have != want:
        msg = f"plan does not fit the program: it has {have} decisions for {want} ops"
        raise PlanMismatchError(msg)
