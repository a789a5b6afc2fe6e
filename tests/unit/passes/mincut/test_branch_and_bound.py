"""The search ends with the optimum, or with a bound that is honest."""

from random import Random

import pytest

from amprewrite.passes.mincut.branch_and_bound import solve
from amprewrite.passes.mincut.problem import Problem
from benchmarks.placement import irregular
from tests.placement_problem import problem_of

PLAIN = """
    %x: f32[64,64] input
    %w: f32[64,64] parameter
    linear = linear(%x, %w) -> %h: f32[64,64]
      | contracted=64
    exp = exp(%h) -> %y: f32[64,64]
    return %y
"""


def mixed(count: int, seed: int) -> Problem:
    from amprewrite.ir import print_graph

    return problem_of(print_graph(irregular(count, seed)))


def test_without_kernels_that_promote_one_cut_is_enough() -> None:
    found = solve(problem_of(PLAIN), most_cuts=1)
    assert found.bound == found.cost


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_meets_the_cost(seed: int) -> None:
    found = solve(mixed(Random(seed).randint(100, 400), seed))
    assert found.bound == found.cost


@pytest.mark.parametrize("most_cuts", [1, 2, 3])
def test_at_its_limit_a_search_says_less_not_more(most_cuts: int) -> None:
    best = solve(mixed(400, 0))
    cut_off = solve(mixed(400, 0), most_cuts)
    assert cut_off.cuts <= most_cuts
    assert cut_off.bound <= best.cost <= cut_off.cost
