"""The cheapest plan that keeps a tolerance as it runs."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from amprewrite.errors import ToleranceError
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget.measured_search import ROOM, plan_within
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Key, Limit
from tests.tolerance_goal import COUNT, GRAPH, goal, plan_for, sensitivity


def test_a_loose_tolerance_gives_the_plan_without_errors() -> None:
    found = plan_within(goal(1.0, sensitivity()))
    free = plan_for(Objective())
    assert found.cost == free.cost
    assert found.decisions == free.decisions
    assert found.predicted_error == pytest.approx(7e-6**0.5)


@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("target", [1e-2, 8e-3, 4e-3, 2.5e-3, 1e-3])
def test_what_is_measured_leaves_room_for_other_inputs(
    target: float, factor: float
) -> None:
    plan = plan_within(goal(target, sensitivity(factor)))
    assert plan.predicted_error is not None
    assert plan.predicted_error <= 0.95 * target


@pytest.mark.parametrize("target", [1e-2, 8e-3, 4e-3, 2.5e-3, 1e-3])
def test_what_cannot_be_measured_leaves_more(target: float) -> None:
    plan = plan_within(goal(target, sensitivity(2.0), lambda _: None))
    assert plan.predicted_error is not None
    assert plan.predicted_error <= 0.85 * target


def test_what_is_measured_beside_its_bound_needs_no_room() -> None:
    found = sensitivity(2.0)
    reached = found.predicted(plan_for(Objective()), GRAPH)
    exact = plan_within(replace(goal(reached * 1.001, found), share=1.0))
    assert exact.cost == plan_for(Objective()).cost
    assert plan_within(goal(reached * 1.001, found)).cost != exact.cost


def low_at(ops: tuple[bool, ...]) -> Plan:
    """The cheapest plan with the other ops full."""
    full = [n for n, low in enumerate(ops, 1) if not low]
    errors: dict[Key, float] = {f"h{n}": inf for n in full}
    errors |= {(f"h{n - 1}", f"op{n}"): inf for n in full}
    return plan_for(Objective(limits=(Limit(errors, inf),)))


ALL = [low_at(ops) for ops in product((False, True), repeat=COUNT)]


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("target", [1e-2, 8e-3, 4e-3, 2.5e-3, 1.5e-3])
def test_a_plan_is_the_cheapest_within_its_tolerance_of_all(
    target: float, factor: float
) -> None:
    found = sensitivity(factor)
    plan = plan_within(goal(target, found))
    limit = max(0.95 * target, plan.predicted_error or 0.0)
    costs = [p.cost.total_bytes for p in ALL if found.predicted(p, GRAPH) <= limit]
    assert plan.cost.total_bytes <= min(costs) * (1 + 1e-3)
    assert plan.cost.lower_bound is not None
    assert plan.cost.lower_bound <= min(costs)
    assert (plan.cost.gap or 0.0) <= 1e-3


def test_the_certificate_of_a_tightened_plan_is_that_of_the_tolerance() -> None:
    found = sensitivity(2.0)
    plan = plan_within(goal(8e-3, found, lambda p: 2 * found.predicted(p, GRAPH)))
    loose = plan_within(goal(8e-3, found))
    assert plan.cost.total_bytes > loose.cost.total_bytes
    assert plan.cost.lower_bound == loose.cost.lower_bound


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_looser_tolerance_is_never_dearer(factor: float) -> None:
    targets = [1e-3, 1.5e-3, 2e-3, 2.5e-3, 3e-3, 4e-3, 8e-3, 1.0]
    plans = [plan_within(goal(t, sensitivity(factor))) for t in targets]
    costs = [plan.cost.total_bytes for plan in plans]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 3


def test_alike_ops_need_not_change_sides_together() -> None:
    """Each layer saves and costs the same, so that one price moves all of them."""
    plan = plan_within(goal(2.4e-3, sensitivity()))
    assert 0 < len(plan.lowered) < COUNT


def test_the_cost_is_that_of_the_plan_without_errors() -> None:
    plan = plan_within(goal(5e-3, sensitivity(2.0)))
    cost = plan.cost
    assert 0 < len(plan.lowered) < COUNT
    parts = cost.cast_bytes + cost.op_bytes + cost.overhead_bytes
    assert cost.total_bytes == parts
    launches = EAGER.launch * cost.casts
    full = COUNT - len(plan.lowered)
    assert cost.overhead_bytes == launches + full * round(512**3 * 0.2 * 7 / 8)


def test_what_measures_worse_is_tightened() -> None:
    found = sensitivity(2.0)
    seen: list[float] = []

    def worse(plan: Plan) -> float:
        seen.append(2 * found.predicted(plan, GRAPH))
        return seen[-1]

    plan_within(goal(8e-3, found, worse))
    assert len(seen) > 1
    assert seen[-1] <= 8e-3 < seen[0]


def test_what_measures_better_is_loosened() -> None:
    found = sensitivity(2.0)
    strict, seen = plan_within(goal(4e-3, found)), list[float]()

    def better(plan: Plan) -> float:
        seen.append(found.predicted(plan, GRAPH) / 2)
        return seen[-1]

    loose = plan_within(goal(4e-3, found, better))
    assert len(seen) > 1
    assert loose.cost.total_bytes < strict.cost.total_bytes
    assert 3.8e-3 < (loose.predicted_error or 0.0) <= 4e-3 * ROOM


def test_what_was_too_loose_does_not_replace_what_keeps_the_target() -> None:
    """A program that is far better than predicted, until one op is low."""
    found = sensitivity(2.0)

    def cliff(plan: Plan) -> float:
        predicted = found.predicted(plan, GRAPH)
        return 1.0 if predicted > 6e-3 else predicted / 2

    plan = plan_within(goal(5e-3, found, cliff))
    assert 5e-3 < (plan.predicted_error or 0.0) <= 6e-3


def test_what_is_not_finite_is_tightened() -> None:
    found = sensitivity(2.0)

    def broken(plan: Plan) -> float:
        predicted = found.predicted(plan, GRAPH)
        return inf if predicted > 5e-3 else predicted

    plan = plan_within(goal(1e-2, found, broken))
    assert plan.predicted_error is not None
    assert 0.0 < plan.predicted_error <= 5e-3


def test_a_tolerance_that_no_plan_keeps_says_what_is_reached() -> None:
    with pytest.raises(
        ToleranceError, match=r"smallest one is 0.5: it is not caused by ops"
    ) as e:
        plan_within(goal(1e-3, sensitivity(), lambda _: 0.5))
    assert (e.value.best, e.value.ops) == (0.5, ())


def test_ops_that_round_whatever_the_price_are_named() -> None:
    found = sensitivity()
    low = plan_for(Objective())

    def stubborn(_: Objective) -> Plan:
        return low

    impossible = replace(goal(1e-3, found), plan_for=stubborn)
    with pytest.raises(ToleranceError, match="every plan rounds at %op1, ") as caught:
        plan_within(impossible)
    assert caught.value.ops[0] == "op1"
    assert caught.value.best == pytest.approx(found.predicted(low, GRAPH))


def test_an_infinite_error_is_kept_full_and_is_the_reason() -> None:
    found = sensitivity()
    stored = {**found.stored, "h3": inf}
    read = {**found.read, ("h3", "op4"): inf, ("h5", "op6"): inf}
    plan = plan_within(goal(1.0, replace(found, stored=stored, read=read)))
    assert plan.by_op["op3"].precision == plan.by_op["op4"].precision == "float32"
    assert plan.by_op["op3"].why == "its values reach 1.2e+05, beyond float16"
    why = "the values of %h3 reach 1.2e+05, beyond float16"
    assert plan.by_op["op4"].why == why
    assert plan.by_op["op1"].precision == "float16"
    if plan.by_op["op6"].precision == "float32":
        why = "the error of the values of %h5 in float16 has no bound"
        assert plan.by_op["op6"].why == why


def test_a_plan_that_lowers_nothing_says_that_the_tolerance_is_why() -> None:
    (line,) = plan_within(goal(1e-4, sensitivity())).warnings
    assert line.endswith("6 ops: nothing was lowered that pays and keeps the tolerance")


def test_the_plan_of_another_placement_is_taken_if_it_is_cheaper() -> None:
    """A program that is as predicted, but for one plan, which makes no error."""
    found, free = sensitivity(2.0), plan_for(Objective())

    def lucky(plan: Plan) -> float:
        same = plan.decisions == free.decisions
        return 0.0 if same else found.predicted(plan, GRAPH)

    alone = replace(goal(4e-3, found, lucky), share=1.0)
    beside = replace(alone, others=lambda: [replace(free, placement="paint")])
    plan = plan_within(beside)
    assert plan.cost.total_bytes == free.cost.total_bytes
    assert plan.cost.total_bytes < plan_within(alone).cost.total_bytes
    assert plan.placement == "optimal"
    assert plan.predicted_error == pytest.approx(found.predicted(free, GRAPH))
    assert (plan.cost.lower_bound or 0) <= plan.cost.total_bytes


def test_the_plan_of_another_placement_has_to_keep_the_target() -> None:
    found, free = sensitivity(2.0), plan_for(Objective())
    alone = goal(4e-3, found)
    beside = replace(alone, others=lambda: [free])
    assert plan_within(beside).decisions == plan_within(alone).decisions


def test_the_plan_of_another_placement_may_be_the_only_one() -> None:
    found, free = sensitivity(), plan_for(Objective())

    def odd(plan: Plan) -> float:
        return 1e-4 if plan.decisions == free.decisions else 1.0

    alone = replace(goal(1e-3, found, odd), share=1.0)
    plan = plan_within(replace(alone, others=lambda: [free]))
    assert plan.decisions == free.decisions


def test_more_is_asked_for_than_a_measurement_promises() -> None:
    """Cheaper plans are better than predicted; what is measured first is not."""
    found = sensitivity(1.0)
    strict = plan_within(goal(2.4e-3, found))
    largest = (strict.predicted_error or 0.0) * 1.01

    def uneven(plan: Plan) -> float:
        predicted = found.predicted(plan, GRAPH)
        return predicted if predicted <= largest else predicted / 1.3

    loose = plan_within(goal(2.4e-3, found, uneven))
    assert loose.cost.total_bytes < strict.cost.total_bytes


def test_what_has_no_predicted_error_is_kept_full_if_nothing_else_will_do() -> None:
    """What is only compared has none: the last layer here, and it ruins everything."""
    found = sensitivity()
    read = {**found.read, ("h5", "op6"): 0.0}
    found = replace(found, stored={**found.stored, "h6": 0.0}, read=read)

    def compared(plan: Plan) -> float:
        low = plan.by_op["op6"].precision == "float16"
        return 1.0 if low else found.predicted(plan, GRAPH)

    plan = plan_within(goal(1.0, found, compared))
    assert plan.by_op["op6"].precision == "float32"
    assert plan.by_op["op1"].precision == "float16"
    assert plan.cost.lower_bound is None


def test_a_lucky_measurement_is_not_believed_beyond_what_predictions_miss() -> None:
    """One output that roundings happen not to move: on other inputs they do."""
    found = sensitivity(2.0)
    plan = plan_within(goal(4e-3, found, lambda _: 1e-9))
    assert (plan.predicted_error or 0.0) <= 4e-3 * 1.25
    free = replace(goal(4e-3, found, lambda _: 1e-9), others=lambda: [free_plan()])
    assert plan_within(free).decisions == plan.decisions


def free_plan() -> Plan:
    return plan_for(Objective())


def test_the_plan_that_is_the_bound_has_its_error_whatever_is_predicted() -> None:
    beside = goal(1e-3, sensitivity(2.0), lambda _: 1e-3)
    beside = replace(beside, share=1.0, others=lambda: [free_plan()])
    assert plan_within(beside).decisions == free_plan().decisions


def test_what_is_only_compared_is_named_where_it_is_rounded_whatever_happens() -> None:
    found, low = sensitivity(), plan_for(Objective())
    silent = replace(
        found,
        stored=dict.fromkeys(found.stored, 0.0),
        read=dict.fromkeys(found.read, 0.0),
    )
    stubborn = replace(goal(1e-3, silent, lambda _: 0.5), plan_for=lambda _: low)
    with pytest.raises(ToleranceError, match="every plan rounds at %op") as caught:
        plan_within(stubborn)
    assert set(caught.value.ops) == {f"op{n}" for n in range(1, COUNT + 1)}
