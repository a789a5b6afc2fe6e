"""Check that a plan belongs to a program."""

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import ProgramGraph
from amprewrite.plan.model import Plan
from amprewrite.plan.validation.check import check_plan
from amprewrite.plan.validation.fingerprint import fingerprint, first_difference

ANEW = "make a new plan with amprewrite.inspect"


def check_ops(graph: ProgramGraph, plan: Plan) -> None:
    """Check that ``plan`` decides about the ops of ``graph``, in their order.

    Raises:
        PlanMismatchError: Names the first op that differs.
    """
    for op, decision in zip(graph.ops, plan.decisions, strict=False):
        if (op.name, op.native) != (decision.op, decision.native):
            msg = (
                f"plan does not fit the program: the program has {op.name} "
                f"({op.native}) where the plan has {decision.op} ({decision.native}); "
                f"{ANEW}"
            )
            raise PlanMismatchError(msg)
    have, want = len(plan.decisions), len(graph.ops)
    if have != want:
        msg = f"plan does not fit the program: it has {have} decisions for {want} ops"
        raise PlanMismatchError(msg)


def check_fits(
    graph: ProgramGraph, plan: Plan, *, training: bool, mode: str = ""
) -> None:
    """Check that ``plan`` was made for ``graph``, and agrees with itself.

    Args:
        graph: The program.
        plan: A given plan, possibly from a file, possibly edited.
        training: Whether parameters keep their dtype, to be trained.
        mode: ``train`` or ``eval``, of a torch model.

    Raises:
        PlanMismatchError: Names the first op that differs, the mode, or every mistake
            in the plan.
    """
    if found := first_difference(fingerprint(graph), plan.program):
        name, here, there = found
        msg = (
            f"plan does not fit the program: first at {name}, where the program has\n"
            f"    {here}\n  and the plan was made for\n    {there}\n  {ANEW}"
        )
        raise PlanMismatchError(msg)
    check_ops(graph, plan)
    if plan.training != training:
        has, asked = (
            "to be trained" if flag else "for inference (training=False)"
            for flag in (plan.training, training)
        )
        msg = (
            f"plan was made for a model {has}, and this one is converted {asked}; pass "
            f"training={plan.training} to convert, or {ANEW}"
        )
        raise PlanMismatchError(msg)
    if plan.mode and mode and plan.mode != mode:
        msg = (
            f"plan was made for the model in {plan.mode} mode, and this one is in "
            f"{mode} mode; call .{plan.mode}() first, or {ANEW}"
        )
        raise PlanMismatchError(msg)
    check_plan(graph, plan)
