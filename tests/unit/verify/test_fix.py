"""The shortest list of ops that reaches a target, and the policy file of it."""

from dataclasses import replace
from math import inf

import pytest

from amprewrite.errors import ToleranceError
from amprewrite.policy import OpClass, Rule, load_policy
from amprewrite.verify.fix import DROPS, fix
from tests.unit.verify.test_blame import Numbers, effects_of, row

SQUARES = {f"op{i}": 4.0**-i for i in range(10)}


def fixed(target, **options):
    numbers = Numbers(SQUARES, **options)
    rows = [row(name) for name in SQUARES]
    return numbers, fix(rows, effects_of(numbers, SQUARES), target, 1e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_the_fewest_ops_are_found(count):
    left = sum(list(SQUARES.values())[count:]) ** 0.5
    numbers, found = fixed(left * 1.001)
    assert found.ops == tuple(SQUARES)[:count]
    assert found.error == pytest.approx(left)
    assert found.runs == len(numbers.runs) <= 2


def test_a_prediction_that_is_off_costs_runs_but_not_the_target():
    numbers = Numbers(SQUARES)
    halves = {name: square / 16 for name, square in SQUARES.items()}
    effects = effects_of(numbers, halves)
    found = fix([row(n) for n in SQUARES], effects, 0.1)
    assert found.error <= 0.1 < effects.left(found.ops[:-1]).error
    assert found.runs <= 10


@pytest.mark.parametrize("squares", [{}, dict.fromkeys(SQUARES, 0.1)])
def test_without_a_prediction_ops_that_do_not_matter_are_left_out(squares):
    numbers = Numbers(dict(reversed(SQUARES.items())))
    rows = [row(name) for name in reversed(SQUARES)]
    found = fix(rows, effects_of(numbers, squares), 0.6)
    assert found.ops == ("op0",)
    assert found.error <= 0.6
    assert found.runs <= 6 + DROPS


def test_nothing_is_kept_full_where_the_target_is_reached():
    _, found = fixed(10.0)
    assert (found.ops, found.overrides, found.runs) == ((), (), 0)


def test_ops_that_overflow_are_first():
    numbers = Numbers(SQUARES, lost={"op8": 1})
    rows = [row(n, own=inf if n == "op8" else 1e-3) for n in SQUARES]
    found = fix(rows, effects_of(numbers, SQUARES), 10.0)
    assert found.ops == ("op8",)


@pytest.mark.parametrize("target", [0.0, -1.0, inf, float("nan")])
def test_a_target_is_a_positive_number(target):
    with pytest.raises(ToleranceError, match="want one above 0"):
        fixed(target)


def test_a_target_in_the_noise_is_refused():
    with pytest.raises(ToleranceError, match=r"itself has an error of 0\.0001 in"):
        fixed(1.5e-4)


def test_a_target_that_is_not_reached_names_the_faults():
    numbers = Numbers(SQUARES | {"fault": 1.0})
    numbers.restorable = frozenset(SQUARES)
    rows = [row(n) for n in SQUARES] + [row("fault", kernel=1.0)]
    with pytest.raises(ToleranceError, match=r"is 1; ops differ .*\(fault\)") as caught:
        fix(rows, effects_of(numbers, SQUARES), 0.01)
    assert caught.value.best == pytest.approx(1.0)


def test_the_file_is_a_policy_with_the_rules_of_the_plan_after_those_of_the_fix(
    tmp_path,
):
    numbers = Numbers({"a[0]": 1.0, "b": 0.01})
    before = Rule(op_class=OpClass.DENY, op="softmax", why='the "user"')
    numbers.plan = replace(numbers.plan, policy="bf16", overrides=(before,))
    effects = effects_of(numbers, dict(numbers.squares))
    found = fix([row("a[0]"), row("b")], effects, 0.2)
    found.save(tmp_path / "fixed.toml")
    rules = load_policy(tmp_path / "fixed.toml").rules
    assert [rule.matches(numbers.graph.ops[0]) for rule in rules] == [True, False]
    assert (rules[1].op, rules[1].why) == ("softmax", 'the "user"')
    assert "1 of 2 low ops" in str(found)
