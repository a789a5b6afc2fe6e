"""The order of measurements, and the knowledge of a program, on given numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from amprewrite.errors import ToleranceError
from amprewrite.measure.runs import Array, Run
from amprewrite.measure.tolerance import Known, plan_known, plan_within
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measurements, Probes, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.measured_numbers import GRAPH, KNOWN, LOWERED, run
from tests.placement_problem import graph_of

PROBES = Probes("bfloat16", "float32", frozenset({"v"}), frozenset())
PLAN = Plan("bf16", "optimal", "bfloat16", "float32", "", (), ())


class Chosen:
    """A budget that tries two plans and takes the last, with a predicted error."""

    substitutes = False

    bounds_gradients = False

    def __init__(self, tolerance: float | str | Mapping[str, float] = 0.5) -> None:
        self.tolerance = tolerance
        self.asked: list[Measurements] = []
        self.errors: list[float | None] = []
        self.keeps: list[bool] = []
        self.known: Plan | None = None

    def remembered(self, *_args: object, **_options: object) -> Plan | None:
        return self.known

    def probes(self, graph: object, *, keep_parameter_dtype: bool) -> Probes:
        assert graph is GRAPH
        self.keeps.append(keep_parameter_dtype)
        return PROBES

    def promoted(self, *_args: object, **_options: object) -> Plan:
        raise AssertionError

    def plan(self, measured: Measurements) -> Plan:
        self.asked.append(measured)
        plans = (PLAN, replace(PLAN, decisions=(LOWERED,), predicted_error=0.25))
        self.errors += map(measured.measure, plans)
        return plans[-1]


class Numbers:
    """A program with outputs that are given; the calls are kept in order."""

    graph, captured, baseline_name = GRAPH, "by hand", "the baseline"

    differentiates = False

    def __init__(self, *, is_random: bool = False, trains: bool = False) -> None:
        self.is_random, self.trains = is_random, trains
        self.calls: list[object] = []

    def reference(self, probes: Probes) -> Run:
        self.calls.append(("reference", probes))
        return run(output=4.0)

    def baseline(self, probes: Probes) -> Run:
        self.calls.append(("baseline", probes))
        return run(output=5.0)

    def sensitivity(self, probes: Probes, factors: Mapping[str, float]) -> Sensitivity:
        self.calls.append(("sensitivity", probes, dict(factors)))
        return KNOWN

    def run(self, plan: Plan) -> Run:
        self.calls.append(plan.decisions)
        return run(output=6.0 if plan.decisions else 4.0)

    def one_by_one(self, plan: Plan) -> Iterator[tuple[str, Mapping[str, Array]]]:
        del plan
        raise AssertionError

    def seconds(self, plans: Mapping[str, Plan]) -> Mapping[str, float]:
        if "large" in plans:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if "wrong" in plans:
            raise RuntimeError("shapes cannot be multiplied")
        return dict.fromkeys(plans, 1.0)


@pytest.mark.parametrize("trains", [True, False])
def test_a_program_is_measured_and_planned(trains: bool) -> None:  # noqa: FBT001  # as pytest gives it
    budget, subject = Chosen(), Numbers(trains=trains)
    plan, known = plan_within(budget, subject)
    assert plan.decisions == (LOWERED,)
    assert subject.calls == [
        ("reference", PROBES),
        ("sensitivity", PROBES, {"output": 0.25}),
        (),
        (LOWERED,),
    ]
    (asked,) = budget.asked
    assert (asked.graph, asked.training, asked.captured) == (GRAPH, trains, "by hand")
    assert (asked.sensitivity, asked.target, budget.keeps) == (KNOWN, 0.5, [trains])
    assert budget.errors == [0.0, 0.5]
    assert known == Known(GRAPH, KNOWN, 0.5, {(): 0.0, (LOWERED,): 0.5}, 2.0)


def test_autocast_is_the_error_of_the_baseline() -> None:
    budget, subject = Chosen("autocast"), Numbers()
    assert plan_within(budget, subject)[1].target == 0.25
    assert subject.calls[1] == ("baseline", PROBES)


def test_random_numbers_are_not_measured() -> None:
    budget, subject = Chosen(), Numbers(is_random=True)
    _, known = plan_within(budget, subject)
    assert budget.errors == [None, None]
    assert (known.errors, known.excess) == ({}, 1.0)


def test_an_error_that_was_not_measured_is_predicted() -> None:
    known = Known(GRAPH, KNOWN, 0.5, {(): 0.125}, 2.0)
    lowered = replace(PLAN, decisions=(LOWERED,), predicted_error=0.25)
    assert known.error(PLAN) == 0.125
    assert known.error(lowered) == 0.5
    budget = Chosen()
    assert plan_known(budget, known, known.error, "again", trains=True) == lowered
    assert (budget.errors, budget.asked[0].captured) == ([0.125, 0.5], "again")


def test_a_program_is_known_with_other_extents() -> None:
    known = Known(GRAPH, KNOWN, 0.5)
    longer = graph_of("""
        %x: f32[5] input
        y = tanh(%x) -> %v: f32[5]
        return %v
    """)
    other = graph_of("""
        %x: f32[2] input
        z = tanh(%x) -> %v: f32[2]
        return %v
    """)
    assert known.is_of(longer)
    assert not known.is_of(other)


class Trained(Numbers):
    """A program with a gradient of 3 in full precision, and others by its plans."""

    differentiates = True

    def reference(self, probes: Probes) -> Run:
        return replace(super().reference(probes), gradients={"w": np.array([3.0])})

    def baseline(self, probes: Probes) -> Run:
        return replace(super().baseline(probes), gradients={"w": np.array([3.3])})

    def run(self, plan: Plan) -> Run:
        return replace(super().run(plan), gradients={"w": np.array([6.0])})

    def one_by_one(self, plan: Plan) -> Iterator[tuple[str, Mapping[str, Array]]]:
        assert plan.by_op.keys() == {op.name for op in GRAPH.ops}
        yield "", {"w": np.array([3.0])}
        yield "op", {"w": np.array([3.6])}


class Bounding(Chosen):
    """A budget that bounds gradients, too."""

    bounds_gradients = True

    def promoted(self, *_args: object, **_options: object) -> Plan:
        return make_plan(GRAPH, Matcher(load_policy("bf16")), Setting())


def test_errors_of_gradients_are_measured_beside_those_of_outputs() -> None:
    budget = Bounding()
    _, known = plan_within(budget, Trained(trains=True))
    assert budget.errors == [1.0, 1.0]  # of the outputs 0.0 and 0.5
    found = known.sensitivity.gradients
    assert found is not None
    assert found.square("op") == pytest.approx(0.04)
    assert found.unit == 1.0


def test_the_bound_of_a_baseline_is_that_of_its_own_gradients() -> None:
    """The error of the outputs is 0.25 there, that of the gradients 0.1."""
    budget = Bounding("autocast")
    _, known = plan_within(budget, Trained(trains=True))
    found = known.sensitivity.gradients
    assert found is not None
    assert found.unit == pytest.approx(2.5)
    assert budget.errors == [pytest.approx(2.5)] * 2


def test_gradients_that_are_zero_have_no_relative_error() -> None:
    class Zero(Trained):
        def reference(self, probes: Probes) -> Run:
            return replace(super().reference(probes), gradients={"w": np.zeros(1)})

    budget = Bounding()
    _, known = plan_within(budget, Zero(trains=True))
    assert known.sensitivity.gradients is None
    assert budget.errors == [0.0, 0.5]


def test_a_remembered_plan_is_measured_again_and_taken_within_the_tolerance() -> None:
    budget, subject = Chosen(), Numbers()
    budget.known = replace(PLAN, decisions=(LOWERED,))
    plan, known = plan_within(budget, subject)
    assert plan is budget.known
    assert known.timed is plan
    assert subject.calls == [("reference", PROBES), (LOWERED,)]
    stricter = Chosen(0.4)
    stricter.known = budget.known
    assert plan_within(stricter, Numbers())[0] is not budget.known


def test_plans_are_timed_by_the_program_as_far_as_memory_suffices() -> None:
    budget = Chosen()
    plan_within(budget, Numbers())
    clock = budget.asked[0].clock
    assert clock is not None
    assert clock({"one": PLAN}) == {"one": 1.0}
    assert clock({"large": PLAN}) is None
    with pytest.raises(RuntimeError, match="shapes"):
        clock({"wrong": PLAN})


class Failing(Numbers):
    """A program that does not run by the baseline."""

    def baseline(self, probes: Probes) -> Run:
        raise ToleranceError(f"does not run in {probes.low}")


def test_a_default_bound_is_that_of_promote_where_the_baseline_fails() -> None:
    with pytest.raises(ToleranceError, match="does not run in"):
        plan_within(Chosen("autocast"), Failing())

    class Lenient(Chosen):
        substitutes = True

        def promoted(self, *_args: object, **_options: object) -> Plan:
            return replace(PLAN, decisions=(LOWERED,))

    assert plan_within(Lenient("autocast"), Failing())[1].target == 0.5
