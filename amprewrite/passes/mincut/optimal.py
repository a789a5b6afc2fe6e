"""Placement ``optimal``: the cheapest sides of all ops, with a certificate."""

from collections.abc import Sequence
from dataclasses import dataclass

from amprewrite.passes.analysis.context import Side, Situation
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.mincut.branch_and_bound import solve
from amprewrite.passes.mincut.problem import build_problem
from amprewrite.passes.placement.assignment import Chosen
from amprewrite.passes.placement.constraints import Freedom

REASONS: dict[Side, str] = {
    "low": "the least cost has it low",
    "full": "the least cost has it full",
    "sums": "the least cost has it low, and hands back its sums",
}
"""Why an op has its side."""


@dataclass(frozen=True)
class Optimum:
    """The cheapest sides.

    Attributes:
        chosen: The sides.
        cost: What they cost, as the solver counts.
        bound: What no other sides undercut.
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
    training: bool,
) -> Optimum:
    """Return the sides of least cost, the certificate with them.

    Args:
        situation: What is known before placement.
        freedom: What there is to decide.
        outputs: Dtype in which each output is handed back.
        objective: What things cost.
        training: Whether parameters keep their dtype, and casts of weights run.
    """
    problem = build_problem(situation, freedom, outputs, objective, training=training)
    found = solve(problem)
    chosen = Chosen(freedom, problem.sides(found.full), REASONS)
    return Optimum(chosen, found.cost, found.bound, found.cuts)
