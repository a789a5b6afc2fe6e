"""What roundings cost, and which of them a plan makes."""

from dataclasses import replace
from math import inf, sqrt

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.plan import Plan
from amprewrite.plan.facts import Gradients
from amprewrite.plan.sensitivity import (
    EightBits,
    Key,
    Probes,
    Sensitivity,
    factors_of,
    probes_of,
)
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    linear = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    relu = relu(%h) -> %r: f32[512,512]
    gelu = gelu(%r) -> %y: f32[512,512]
    return %y
""")

FOUND = Sensitivity(
    stored={"h": 1e-6, "y": 4e-6},
    read={
        ("x", "linear"): 16e-6,
        ("w", "linear"): 64e-6,
        ("h", "relu"): 1.0,
        ("r", "gelu"): 1.0,
    },
    directions=4,
    weights=frozenset({"w"}),
)


def plan() -> Plan:
    """All low: %w is stored low, and %h and %r are rounded once."""
    matcher = Matcher(load_policy("bf16"))
    return make_plan(GRAPH, matcher, Setting("optimal"))


def test_what_was_rounded_is_not_rounded_again() -> None:
    found = plan()
    assert {d.precision for d in found.decisions} == {"bfloat16"}
    assert set(FOUND.roundings(found, GRAPH)) == {
        *("h", "y"),
        *(("x", "linear"), ("w", "linear")),
    }


def test_a_weight_is_rounded_by_its_readers_however_it_is_stored() -> None:
    activation = replace(FOUND, weights=frozenset())
    moved = graph_of("""
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        t = transpose(%w) -> %wt: f32[512,512] alias %w
        linear = linear(%x, %wt) -> %y: f32[512,512]
          | contracted=512
        return %y
    """)
    found = make_plan(moved, Matcher(load_policy("bf16")), Setting("optimal"))
    read = {("wt", "linear"): 1e-6}
    weight = Sensitivity({}, read, 1, weights=frozenset({"w", "wt"}))
    assert list(weight.roundings(found, moved)) == [("wt", "linear")]
    activation = Sensitivity({}, read, 1)
    assert list(activation.roundings(found, moved)) == []


def test_what_reads_full_rounds_nothing() -> None:
    dear = Objective(limits=FOUND.limits(0.0))
    setting = Setting("optimal", objective=dear)
    found = make_plan(GRAPH, Matcher(load_policy("bf16")), setting)
    assert FOUND.predicted(found, GRAPH) == 0.0


def test_the_prediction_is_the_root_of_the_sum() -> None:
    assert FOUND.predicted(plan(), GRAPH) == pytest.approx(sqrt(85e-6))


def test_limits_are_on_squares_and_on_gradients_in_units_of_the_outputs() -> None:
    found = Sensitivity({"a": 2e-6, "b": inf}, {}, 4)
    (limit,) = found.limits(1e-3)
    assert (limit.errors, limit.bound) == (found.all, 1e-3**2)
    gradients = Gradients(
        {"w": 2.0}, {"w": 4}, {"one": {"w": 0.2}}, {"w": 0.4}, 1e-4, 3.0
    )
    key = EightBits("one", "float8_e4m3fn", "current")
    both = replace(found, eight={key: 1e-5}, gradients=gradients)
    outputs, bounded = both.limits(0.5)
    assert outputs.errors == both.all
    error = 3.0**2 * 0.4**2 / 2.0**2 / 1e-4
    assert bounded.errors["a"] == pytest.approx(2e-6 * error)
    assert bounded.errors[key] == pytest.approx(3.0**2 * 0.2**2 / 2.0**2)
    worst = gradients.error(["one"], 2e-6)
    total = bounded.errors["a"] + bounded.errors[key]
    assert 3.0 * worst.error == pytest.approx(sqrt(total))


@pytest.mark.parametrize(("count", "directions"), [(0, 40), (1, 40), (10, 16), (99, 4)])
def test_few_roundings_have_many_directions(count: int, directions: int) -> None:
    """With four, the error of three roundings was off by a factor of 1.6."""
    stored = frozenset(f"v{number}" for number in range(count))
    assert Probes("bfloat16", "float32", stored, frozenset()).directions == directions


def test_the_probes_of_a_plan_are_the_roundings_that_it_makes() -> None:
    low = probes_of(plan(), GRAPH)
    assert (low.low, low.full) == ("bfloat16", "float32")
    assert low.stored == {"h", "y"}  # relu moves what was rounded
    assert low.read == {("x", "linear"), ("w", "linear")}
    dear = Objective(limits=FOUND.limits(0.0))
    setting = Setting("optimal", objective=dear)
    full = make_plan(GRAPH, Matcher(load_policy("bf16")), setting)
    assert not probes_of(full, GRAPH).stored | probes_of(full, GRAPH).read


TWICE = graph_of("""
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    one = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    two = linear(%h, %w) -> %y: f32[512,512]
      | contracted=512
    return %y
""")


def test_the_roundings_of_one_weight_in_two_uses_are_one_rounding() -> None:
    low = make_plan(TWICE, Matcher(load_policy("bf16")), Setting("promote"))
    one, two = ("w", "one"), ("w", "two")
    moves: dict[Key, tuple[float, ...]] = {one: (1e-3, -1e-3), two: (1e-3, -1e-3)}
    reads = {one: 1e-6, two: 1e-6}
    found = Sensitivity({}, reads, 2, moves=moves)
    assert found.predicted(low, TWICE) == pytest.approx(sqrt(2e-6))
    assert found.shared(low, TWICE) == pytest.approx(2e-3)
    assert found.shares(low, TWICE) == pytest.approx({"one": 0.5, "two": 0.5})
    undone = {**moves, two: (-1e-3, 1e-3)}
    assert replace(found, moves=undone).shared(low, TWICE) == 0.0
    assert replace(found, moves={}).shared(low, TWICE) == pytest.approx(sqrt(2e-6))


def test_each_op_has_its_share_in_the_error() -> None:
    shares = FOUND.shares(plan(), GRAPH)  # of what gelu reads, relu only moves it
    assert shares == pytest.approx({"linear": 80 / 85, "gelu": 5 / 85})
    nothing = replace(
        FOUND, stored={"h": 0.0, "y": 0.0}, read=dict.fromkeys(FOUND.read, 0.0)
    )
    assert nothing.shares(plan(), GRAPH) == {}


EIGHT = EightBits("linear", "float8_e4m3fn", "current")


def eight_bits(plan: Plan, op: str) -> Plan:
    """The plan with the factors of one op in 8 bits."""
    return replace(
        plan,
        decisions=tuple(
            replace(d, forward=EIGHT.format, scaling=EIGHT.scaling) if d.op == op else d
            for d in plan.decisions
        ),
    )


def test_a_contraction_in_8_bits_adds_the_error_of_its_factors() -> None:
    found = replace(FOUND, eight={EIGHT: 15e-6})
    assert found.predicted(plan(), GRAPH) == pytest.approx(sqrt(85e-6))
    quantised = eight_bits(plan(), "linear")
    assert found.predicted(quantised, GRAPH) == pytest.approx(sqrt(100e-6))
    assert found.shares(quantised, GRAPH)["linear"] == pytest.approx(0.95)


def test_the_probes_of_a_plan_have_its_factors_in_8_bits() -> None:
    found = probes_of(eight_bits(plan(), "linear"), GRAPH)
    assert found.eight == {EIGHT: {"x", "w"}}
    assert found.eight_bits_at("x", "linear") == EIGHT
    assert found.eight_bits_at("h", "relu") is None
    assert found.keys[-1] == EIGHT
    assert found.directions == 32
    assert not probes_of(plan(), GRAPH).eight


def test_many_contractions_in_8_bits_have_more_directions_than_roundings_of_16() -> (
    None
):
    stored = frozenset(f"v{number}" for number in range(99))
    found = Probes("bfloat16", "float32", stored, frozenset())
    assert replace(found, eight={EIGHT: frozenset({"x"})}).directions == 24


def test_an_addend_is_no_factor() -> None:
    graph = graph_of("""
        %b: f32[4] parameter
        %x: f32[4,4] input
        %w: f32[4,4] parameter
        addmm = addmm(%b, %x, %w) -> %y: f32[4,4]
          | contracted=4
        return %y
    """)
    assert factors_of(graph.op_by_name["addmm"]) == {"x", "w"}


def test_what_is_not_predicted_has_an_infinite_error() -> None:
    found = FOUND.without([EIGHT])
    assert found.eight_by_op["linear"] == EIGHT
    assert found.predicted(eight_bits(plan(), "linear"), GRAPH) == inf
    assert found.limits(1.0)[0].errors[EIGHT] == inf


def test_the_larger_error_of_outputs_and_gradients_is_bounded() -> None:
    gradients = Gradients({"w": 2.0}, {"w": 4}, {"linear": {"w": 0.2}}, {"w": 0.0})
    found = replace(FOUND, eight={EIGHT: 15e-6}, gradients=gradients)
    assert found.bounded[EIGHT] == pytest.approx(0.01)
    quantised = replace(eight_bits(plan(), "linear"), predicted_error=0.05)
    error = found.gradient_error(quantised, GRAPH)
    assert error is not None
    assert (error.error, error.parameter) == (pytest.approx(0.1), "w")
    assert found.larger(quantised) == 0.05
    assert found.larger(replace(quantised, gradient_error=error)) == pytest.approx(0.1)
    assert FOUND.gradient_error(quantised, GRAPH) is None
