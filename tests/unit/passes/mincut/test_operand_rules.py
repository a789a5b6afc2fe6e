"""Bounds of kernels that promote for free."""

from itertools import product

import numpy as np
import pytest

from amprewrite.passes.mincut.max_flow import FULL, LOW, price
from amprewrite.passes.mincut.operand_rules import Relaxation
from amprewrite.passes.mincut.problem import Problem
from tests.placement_problem import problem_of

TEXT = """
    %x: f32[64,64] input
    %w: f32[64,64] parameter
    one = linear(%x, %w) -> %h: f32[64,64]
    two = linear(%x, %w) -> %k: f32[64,64]
    sub = sub(%h, %k) -> %s: f32[64,64]
      | operand_rule="promote"
    exp = exp(%s) -> %y: f32[64,64]
    return %y
"""
CAST = 64 * 64 * 6


def assignments(problem: Problem):
    mix = problem.groups.mixes[0]
    for assignments in product((False, True), repeat=3):
        full = np.zeros(problem.variables, np.bool_)
        full[FULL] = True
        full[[mix.op, *mix.stored]] = assignments
        yield assignments, full


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_share_bounds_what_the_casts_cost(share: float) -> None:
    problem = problem_of(TEXT)
    operand_rule = Relaxation(problem)
    parts = np.rint(operand_rule.nothing() + share * CAST).astype(np.int64)
    columns, constant = operand_rule.terms(parts, ())
    for _, full in assignments(problem):
        assert price(columns, full) + constant <= operand_rule.look(full).cost


def test_a_bound_is_exact_with_a_share_of_none_or_all() -> None:
    problem = problem_of(TEXT)
    operand_rule = Relaxation(problem)
    for share in (0, CAST):
        columns, constant = operand_rule.terms(operand_rule.nothing() + share, ())
        for (op, *operands), full in assignments(problem):
            said, real = price(columns, full) + constant, operand_rule.look(full).cost
            missed = op and sum(operands) == (2 if share else 0)
            assert (said == real) == (not missed)


def test_charges_move_to_where_they_were_too_small_and_back() -> None:
    problem = problem_of(TEXT)
    operand_rule = Relaxation(problem)
    found = dict(assignments(problem))
    unpaid = operand_rule.look(found[True, False, False])
    assert unpaid.cost == 2 * CAST
    charged = operand_rule.move(operand_rule.nothing(), unpaid, 1.0)
    assert charged.tolist() == [CAST, CAST]
    over = operand_rule.look(found[True, True, True])
    assert operand_rule.move(charged, over, 0.5).tolist() == [CAST // 2, CAST // 2]


def test_with_all_sides_fixed_a_bound_is_exact() -> None:
    problem = problem_of(TEXT)
    operand_rule = Relaxation(problem)
    mix = problem.groups.mixes[0]
    fixed = ((mix.op, True), (mix.stored[0], False), (mix.stored[1], False))
    columns, constant = operand_rule.terms(operand_rule.nothing(), fixed)
    full = dict(assignments(problem))[True, False, False]
    full[[group.wanted for group in mix.groups]] = True
    assert price(columns, full) + constant == 2 * CAST
    assert LOW not in columns[0].tolist()


def test_the_widest_gap_is_the_mix_that_is_charged_too_little() -> None:
    problem = problem_of(TEXT)
    operand_rule = Relaxation(problem)
    found = dict(assignments(problem))
    nothing = operand_rule.nothing()
    low = operand_rule.look(found[True, False, False])
    assert operand_rule.widest_gap(nothing, low, ()) == 0
    assert (
        operand_rule.widest_gap(
            nothing, operand_rule.look(found[True, True, False]), ()
        )
        == -1
    )
