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
    "accumulator": "the least cost has it low, handing over its accumulator",
}
"""Text of the reason for each assignment."""


@dataclass(frozen=True)
class Optimum:
    """The cheapest assignments, with their certificate.

    Attributes:
        chosen: The assignments.
        cost: Their cost in the solver.
        bound: Lower bound on the cost of all assignments.
        cuts: Number of minimum cuts solved.
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
    """Return the assignments of least cost, with their certificate.

    Args:
        situation: The facts before placement.
        freedom: The ops that can be assigned.
        outputs: Dtype in which each output is returned.
        objective: Prices and error costs.
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
