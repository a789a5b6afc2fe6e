"""Integer programs: compared with trying all choices, with and without limits."""

from itertools import pairwise, product
from math import inf
from random import Random

import numpy as np
import pytest

from amprewrite.passes.placement import integer_program
from amprewrite.passes.placement.integer_program import (
    FULL,
    LOW,
    Flags,
    IntegerProgram,
    least_error,
    solve,
)
from amprewrite.plan.sensitivity import Key, Limit


def program_of(size: int) -> tuple[IntegerProgram, list[int]]:
    program = IntegerProgram()
    return program, [program.new() for _ in range(size)]


def flags(*choices: bool) -> Flags:
    return np.array([False, True, *choices])


def everything(program: IntegerProgram) -> list[Flags]:
    options = product((False, True), repeat=len(program.costs) - 2)
    return [full for full in (flags(*o) for o in options) if program.keeps(full)]


def test_a_term_costs_only_where_one_is_full_and_the_other_low() -> None:
    program, (a, b) = program_of(2)
    program.pay(a, b, 5)
    for full in everything(program):
        assert program.cost(full) == (5 if full[a] and not full[b] else 0)


def test_a_payment_is_due_once_for_all_its_cases() -> None:
    program, (stored, first, second) = program_of(3)
    program.pay_any([(stored, (first,)), (stored, (second,))], 6)
    assert program.cost(flags(True, False, False)) == 6
    assert program.cost(flags(True, True, False)) == 6
    assert program.cost(flags(True, True, True)) == 0
    assert program.cost(flags(False, False, False)) == 0


def test_a_case_needs_all_of_its_low_choices() -> None:
    program, (op, first, second) = program_of(3)
    program.pay_any([(op, (first, second))], 6)
    assert program.cost(flags(True, False, False)) == 6
    assert program.cost(flags(True, False, True)) == 0


def test_what_cannot_cost_is_left_out_and_what_one_choice_decides_is_its_cost() -> None:
    program, (a, _) = program_of(2)
    program.pay(a, a, 5)
    program.pay(LOW, a, 5)
    program.pay(a, FULL, 5)
    program.pay_any([(a, (a, 3))], 5)
    assert (program.payments, program.costs[a], program.constant) == ({}, 0, 0)
    program.pay(a, LOW, 7)
    program.pay(FULL, a, 4)
    assert (program.payments, program.costs[a], program.constant) == ({}, 3, 4)


def test_what_costs_the_same_on_both_sides_is_full() -> None:
    program, (a, _) = program_of(2)
    program.pay(a, LOW, 7)
    program.pay(FULL, a, 7)
    solution = solve(program)
    assert solution is not None
    assert solution.full.tolist() == [False, True, True, True]


@pytest.mark.parametrize("cost", [1, 10**10])
def test_of_plans_that_cost_the_same_the_one_with_most_full_is_taken(cost: int) -> None:
    """Also where one byte in 1e10 decides: a chain of ties and one that is not."""
    program, choices = program_of(500)
    for first, second in pairwise(choices):
        program.pay(first, second, cost)
        program.pay(second, first, cost)
    program.pay_low(choices[0], cost)
    program.pay_full(choices[-1], cost)
    solution = solve(program)
    assert solution is not None
    assert solution.full[1:].all()
    program.pay_full(choices[0], 1)
    solution = solve(program)
    assert solution is not None
    assert not solution.full[2:].any()
    assert solution.cost == solution.bound == cost


def test_an_implication_is_kept_whatever_it_costs() -> None:
    program, (a, b) = program_of(2)
    program.pay_low(a, 100)
    program.imply(a, b)
    program.pay_full(b, 1000)
    solution = solve(program)
    assert solution is not None
    assert solution.full.tolist() == [False, True, False, False]


def test_either_is_full_where_one_of_them_is() -> None:
    program, (a, b) = program_of(2)
    assert program.either((a, FULL)) == FULL
    assert program.either((a, a)) == a
    both = program.either((a, b))
    assert not program.keeps(flags(True, False, False))
    assert program.keeps(flags(True, False, True))
    assert both == 4


def random_program(random: Random, largest: int) -> IntegerProgram:
    program, choices = program_of(random.randint(1, 7))
    choices = [LOW, FULL, *choices]
    for _ in range(random.randint(1, 16)):
        a, b = random.choice(choices), random.choice(choices)
        if random.random() < 0.2 and (a, b) != (FULL, LOW):
            program.imply(a, b)
        elif random.random() < 0.2:
            program.pay_full(a, random.randint(-largest, largest))
        else:
            cases = [
                (random.choice(choices), tuple({*random.choices(choices, k=k)}))
                for k in (1, random.randint(1, 3))
            ]
            program.pay_any(cases[: random.randint(1, 2)], random.randint(1, largest))
    for number in range(random.randint(0, 9)):
        program.count_error(
            f"v{number}", random.choice(choices), random.choice(choices)
        )
    return program


@pytest.mark.parametrize("largest", [10, 1000, 2**33, 2**44])
def test_a_solution_is_the_cheapest_and_most_full_of_all(largest: int) -> None:
    for seed in range(60):
        program = random_program(Random(seed), largest)
        options, solution = everything(program), solve(program)
        if not options:
            assert solution is None
            continue
        assert solution is not None
        costs = [(program.cost(full), -int(full.sum())) for full in options]
        assert solution.cost == program.cost(solution.full) == min(costs)[0]
        assert (solution.cost, -int(solution.full.sum())) == min(costs)
        assert solution.cost - solution.bound <= 1e-10 * largest


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-12, 1e-20])
def test_errors_keep_their_limits_whatever_their_size(scale: float) -> None:
    solved = 0
    for seed in range(60):
        random = Random(seed)
        program = random_program(random, 1000)
        limits = [
            Limit(
                {f"v{n}": scale * 10 ** random.uniform(-8, 0) for n in range(9)},
                scale * random.choice((0.0, 1e-4, 0.01, 0.1, 0.5)),
            )
            for _ in range(random.randint(1, 2))
        ]
        options = [o for o in everything(program) if program.keeps(o, limits)]
        solution = solve(program, limits)
        if not options:
            assert solution is None
            continue
        assert solution is not None
        assert program.keeps(solution.full, limits)
        assert solution.cost == solution.bound == min(map(program.cost, options))
        solved += 1
    assert solved > 20


def test_an_infinite_error_is_avoided_whatever_the_limit() -> None:
    program, (a, b) = program_of(2)
    program.pay_full(a, 5)
    program.pay_full(b, 5)
    program.count_error("a", FULL, a)
    program.count_error("b", FULL, b)
    solution = solve(program, [Limit({"a": inf, "b": 1e300}, inf)])
    assert solution is not None
    assert solution.full.tolist() == [False, True, True, False]
    assert solve(program, [Limit({"a": inf}, 1e300)]) is not None


def test_an_error_that_no_choice_avoids_leaves_less_room() -> None:
    program, (a,) = program_of(1)
    program.pay_full(a, 5)
    program.count_error("always", FULL, LOW)
    program.count_error("a", FULL, a)
    errors: dict[Key, float] = {"always": 1.0, "a": 1.0}
    wide, narrow = (
        solve(program, [Limit(errors, 2.0)]),
        solve(program, [Limit(errors, 1.5)]),
    )
    assert wide is not None
    assert narrow is not None
    assert (wide.cost, narrow.cost) == (0, 5)
    assert solve(program, [Limit(errors, 0.5)]) is None


def test_the_least_errors_are_those_of_no_other_choices() -> None:
    for seed in range(60):
        random = Random(seed)
        program = random_program(random, 10)
        errors: dict[Key, float] = {
            f"v{n}": 10 ** random.uniform(-6, 0) for n in range(9)
        }
        limit = Limit(errors, 0.0)
        if options := everything(program):
            least = program.error(least_error(program, [limit]), limit)
            best = min(program.error(full, limit) for full in options)
            assert least == pytest.approx(best, abs=1e-8)


def knapsack(size: int = 60) -> tuple[IntegerProgram, Limit]:
    random, (program, choices) = Random(1), program_of(size)
    errors: dict[Key, float] = {}
    for choice in choices:
        program.pay_full(choice, random.randint(10**6, 2 * 10**6))
        program.count_error(f"v{choice}", FULL, choice)
        errors[f"v{choice}"] = random.uniform(1.0, 2.0)
    return program, Limit(errors, sum(errors.values()) / 2)


def test_at_its_limit_of_nodes_a_search_says_less_not_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five limits together are hard to keep in the cheapest way."""
    random, (program, limit) = Random(2), knapsack()
    limits = [limit]
    for _ in range(4):
        errors = {key: random.uniform(1.0, 2.0) for key in limit.errors}
        limits.append(Limit(errors, sum(errors.values()) / 2))
    best = solve(program, limits, gap=1e-2)
    monkeypatch.setattr(integer_program, "NODES", 1)  # as a warning tells users to
    stopped = solve(program, limits)
    assert best is not None
    assert stopped is not None
    assert not best.stopped
    assert (stopped.stopped, stopped.nodes) == (True, 1)
    assert stopped.bound <= best.cost
    assert best.bound <= stopped.cost
    assert stopped.bound < stopped.cost


def test_a_gap_ends_the_search_within_it() -> None:
    program, limit = knapsack()
    program.constant += 10**7
    for gap in (1e-2, 1e-3, 1e-4):
        solution = solve(program, [limit], gap=gap)
        assert solution is not None
        assert solution.cost - solution.bound <= gap * solution.cost
        assert not solution.stopped


def broken(monkeypatch: pytest.MonkeyPatch, times: float) -> list[int]:
    """Let HiGHS return choices that are all low, so many times."""
    real, calls = integer_program._Rows._highs, list[int]()

    def highs(rows: integer_program._Rows, gap: float = 0.0, nodes: int = 0):
        calls.append(nodes)
        values = np.array([0.0, 1.0] + [0.0] * (rows.size - 2))
        wrong = integer_program._Result(values, 0.0, 0.0, 0, stopped=False)
        return wrong if len(calls) <= times else real(rows, gap, nodes)

    monkeypatch.setattr(integer_program._Rows, "_highs", highs)
    return calls


def test_a_solution_beyond_a_limit_is_refused_and_solved_more_strictly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, limit = knapsack(8)
    calls = broken(monkeypatch, 1)
    solution = solve(program, [limit])
    assert len(calls) > 1
    assert solution is not None
    assert program.keeps(solution.full, [limit])
    assert solution.bound <= solution.cost


def test_choices_that_just_keep_a_limit_are_found_without_the_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stricter row would have none: all errors of the others are too large."""
    program, (a, b) = program_of(2)
    program.imply(a, b)
    for name, choice in (("a", a), ("b", b)):
        program.count_error(name, FULL, choice)
    program.count_error("c", a, LOW)
    limit = Limit({"a": 1.0, "b": 0.25, "c": 1.0}, 1.0)
    broken(monkeypatch, 1)
    solution = solve(program, [limit])
    assert solution is not None
    assert program.keeps(solution.full, [limit])
    assert program.error(solution.full, limit) == 1.0


def test_a_solver_that_keeps_no_limit_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, limit = knapsack(8)
    calls = broken(monkeypatch, inf)
    with pytest.raises(RuntimeError, match="of 10 choices, and its solution breaks"):
        solve(program, [limit])
    assert len(calls) == len(integer_program.SLACKS) + 1  # and for the least errors
