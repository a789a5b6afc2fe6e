"""Placement ``optimal``: the cheapest assignments of all ops, with a certificate."""

from dataclasses import dataclass

from amprewrite.passes.analysis.context import Assignment
from amprewrite.passes.mincut.branch_and_bound import solve
from amprewrite.passes.mincut.problem import Problem
from amprewrite.passes.placement.assignment import Chosen

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


def choose_optimal(problem: Problem) -> Optimum:
    """Return the assignments of least cost, with their certificate."""
    found = solve(problem)
    chosen = Chosen(problem.freedom, problem.assignments(found.full), REASONS)
    return Optimum(chosen, found.cost, found.bound, found.cuts)
