"""Placement ``optimal``: the cheapest assignments of all ops, with a certificate."""

from collections.abc import Sequence
from dataclasses import dataclass

from amprewrite.passes.analysis.context import Assignment, Situation
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.mincut.branch_and_bound import solve
from amprewrite.passes.mincut.problem import build_problem
from amprewrite.passes.placement.assignment import Chosen
from amprewrite.passes.placement.constraints import Freedom

REASONS: dict[Assignment, str] = {
    "low": "the least cost has it low",
    "full": "the least cost has it full",
    "accumulator": "the least cost has it low, and hands back its sums",
}
"""Reason for each assignment."""


@dataclass(frozen=True)
class Optimum:
    """The cheapest assignments.

    Attributes:
        chosen: The assignments.
        cost: What they cost, as the solver counts.
        bound: What no other assignments undercut.
        cuts: How many minimum cuts it took.
    """

    chosen: Chosen
    cost: int
    bound: int
    cuts: int


def choose_optimal(
    situation: Situation,
    freedom: Freedom,
    outputs: Sequence[str],
    objective: Objective,
    *,
    keep_parameter_dtype: bool,
) -> Optimum:
    """Return the assignments of least cost, the certificate with them.

    Args:
        situation: What is known before placement.
        freedom: What there is to decide.
        outputs: Dtype in which each output is handed back.
        objective: What things cost.
        keep_parameter_dtype: Whether parameters keep their dtype, and casts of weights
            run.
    """
    problem = build_problem(
        situation,
        freedom,
        outputs,
        objective,
        keep_parameter_dtype=keep_parameter_dtype,
    )
    found = solve(problem)
    chosen = Chosen(freedom, problem.assignments(found.full), REASONS)
    return Optimum(chosen, found.cost, found.bound, found.cuts)
