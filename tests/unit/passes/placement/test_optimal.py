"""Placement ``optimal``: what each placement costs, and the one that it chooses."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from amprewrite.errors import ToleranceError
from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import COMPILED, EAGER, CostModel, Point, Timings
from amprewrite.passes.placement.integer_program import FULL, LOW, solve
from amprewrite.passes.placement.optimal import SharedCast, choose_optimal
from amprewrite.plan import Plan
from amprewrite.plan.hardware import Kernels
from amprewrite.plan.sensitivity import Key, Limit
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of, problem_of
from tests.properties.placements import Case, all_sides, free_of
from tests.properties.placements import price as price_of_plan

TEXT = """
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    %u: f32[512,512] parameter
    first = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    gelu = gelu(%h) -> %g: f32[512,512]
    second = linear(%g, %u) -> %y: f32[512,512]
      | contracted=512
    return %y
"""


def plan(objective: Objective, text: str = TEXT, policy: str = "bf16") -> Plan:
    matcher = Matcher(load_policy(policy))
    return make_plan(graph_of(text), matcher, Setting("optimal", objective=objective))


def lowered(found: Plan) -> list[str]:
    return [decision.op for decision in found.lowered]


def test_contractions_and_what_lies_between_run_low() -> None:
    found = plan(Objective())
    assert lowered(found) == ["first", "gelu", "second"]
    assert found.cost.lower_bound == found.cost.total_bytes


def test_a_contraction_stays_full_where_casts_cost_more_than_they_save() -> None:
    dear = Objective(replace(EAGER, launch=10**9))
    found = plan(dear)
    assert lowered(found) == []
    assert found.warnings[0].endswith(
        "it would cost more than it saves, or is not safe"
    )


def within(errors: Mapping[Key, float], bound: float) -> Plan:
    return plan(Objective(limits=(Limit(errors, bound),)))


@pytest.mark.parametrize("key", ["g", "h", "y"])
def test_an_error_is_avoided_where_the_limit_has_no_room_for_it(key: str) -> None:
    assert within({key: 1.0}, 1.0).cost == plan(Objective()).cost
    kept = within({key: 1.0}, 0.99)
    assert len(kept.lowered) < 3
    assert kept.cost.lower_bound == kept.cost.total_bytes
    assert kept.cost.total_bytes > plan(Objective()).cost.total_bytes


def test_reading_low_is_an_error_only_of_what_is_stored_full() -> None:
    """What was stored low was rounded already."""
    reading: dict[Key, float] = {("g", "second"): 1.0}
    assert within(reading, 0.0).cost == plan(Objective()).cost
    stored: dict[Key, float] = {"h": 1.0, "g": 1.0}
    assert lowered(within(stored, 0.5)) == ["second"]
    assert lowered(within({**stored, **reading}, 0.5)) == []


def test_a_limit_that_no_plan_keeps_says_the_least_error_and_the_op() -> None:
    text = TEXT.replace(
        "      | contracted=512\n    gelu",
        '      | contracted=512 reads=["float32", "float32"]\n    gelu',
    )
    errors: dict[Key, float] = {("x", "first"): 4e-6, "g": 1e-6}
    objective = Objective(limits=(Limit(errors, 1e-6),))
    with pytest.raises(
        ToleranceError, match=r"at most 0.001; .* 0.002, by %first; all"
    ):
        plan(objective, text)
    with pytest.raises(ToleranceError) as caught:
        plan(objective, text)
    assert (caught.value.best, caught.value.ops) == (pytest.approx(2e-3), ("first",))


def test_a_search_that_stops_says_its_gap_and_what_to_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimum = choose_optimal(problem_of(TEXT, EAGER))
    assert not optimum.stopped
    stopped = replace(optimum, cost=1000, bound=995, nodes=7, stopped=True)
    monkeypatch.setattr("amprewrite.passes.pipeline.choose_optimal", lambda *_: stopped)
    found = plan(Objective())
    assert found.cost.lower_bound == 995
    (warning,) = found.warnings
    assert warning == (
        "the search for the cheapest plan stopped at 7 nodes: a plan may cost 0.50% "
        "less; allow a larger tolerance, or raise "
        "amprewrite.passes.placement.integer_program.NODES"
    )


def test_a_sensitive_op_that_is_accumulated_is_chosen_by_bytes() -> None:
    text = TEXT.replace("gelu = gelu(%h)", "gelu = avg_pool1d(%h)")
    assert lowered(plan(Objective(), text)) == ["first", "gelu", "second"]


def test_the_optimum_is_that_of_the_plan() -> None:
    found = choose_optimal(problem_of(TEXT, EAGER))
    cost = plan(Objective()).cost
    assert (found.cost, found.bound) == (cost.total_bytes, cost.lower_bound)
    assert found.chosen.assignments == dict.fromkeys(("first", "gelu", "second"), "low")


def test_a_policy_that_lowers_nothing_needs_no_solver() -> None:
    found = plan(Objective(), policy="off")
    assert (found.lowered, found.cost.lower_bound) == ((), None)


PROGRAMS = {
    "a block": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        linear = linear(%x, %w) -> %h: f32[64,64]
          | contracted=64
        relu = relu(%h) -> %r: f32[64,64]
        exp = exp(%r) -> %e: f32[64,64]
        add = add(%e, %h) -> %y: f32[64,64]
          | operand_rule="promote"
        return %y
    """,
    "between library calls": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        first = matmul(%x, %w) -> %h: f32[64,64]
          | contracted=64 accumulates=true
        second = matmul(%h, %w) -> %g: f32[64,64]
          | contracted=64 accumulates=true
        relu = relu(%g) -> %r: f32[64,64]
        third = matmul(%r, %r) -> %k: f32[64,64]
          | contracted=64
        mul = mul(%r, %k) -> %y: f32[64,64]
        return %y, %h
    """,
    "a write in place": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        linear = linear(%x, %w) -> %h: f32[64,64]
        relu = relu(%h) -> %r: f32[64,64] alias %h
          | mutates=[0]
        exp = exp(%h) -> %y: f32[64,64]
        return %y
    """,
    "a write in place beside a result that nothing reads": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        one = linear(%x, %w) -> %a: f32[64,64]; %b: f32[64,64] alias %a
          | contracted=64
        two = exp(%a) -> %y: f32[64,64] alias %a
          | mutates=[0]
        return %y
    """,
    "a tied table": """
        %t: f32[100,64] parameter
        %i: i64[16] input
        rows = embedding(%t, %i) -> %e: f32[16,64]
        turn = transpose(%t) -> %u: f32[64,100] alias %t
        head = matmul(%e, %u) -> %y: f32[16,100]
          | contracted=64
        return %y
    """,
}


SLOW_LOW = replace(EAGER, speedup=0.5)
MEASURED = Timings(
    {"product": (Point(16, 16**3, 1.0, 3.0), Point(64, 64**3, 1.0, 0.2))},
    saved=2,
    elementwise={"exp": 3.0},
)


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(
    "model",
    [
        EAGER,
        COMPILED,
        replace(EAGER, launch=0),
        SLOW_LOW,
        replace(EAGER, timings=MEASURED),
        replace(COMPILED, timings=MEASURED),
        replace(COMPILED, kernels=Kernels(accumulators=True)),
    ],
    ids=[
        "eager",
        "compiled",
        "no launch",
        "slow low",
        "measured",
        "measured compiled",
        "compiled with accumulators",
    ],
)
@pytest.mark.parametrize("keep_parameter_dtype", [False, True])
def test_a_placement_costs_what_its_plan_costs(
    text: str, model: CostModel, *, keep_parameter_dtype: bool
) -> None:
    """By fixing every side: the rest of the program is then what the casts cost."""
    graph, policy = graph_of(text), load_policy("bf16")
    case = Case(
        graph,
        policy,
        training=keep_parameter_dtype,
        objective=Objective(model),
    )
    for assignments in all_sides(free_of(case)):
        fixed = problem_of(text, model, keep_parameter_dtype=keep_parameter_dtype)
        for name, side in assignments.items():
            choices = [(fixed.reads[name], side == "full")]
            if name in fixed.makes and side != "full":
                choices.append((fixed.makes[name], side == "accumulator"))
            for choice, full in choices:
                fixed.program.imply(*((FULL, choice) if full else (choice, LOW)))
        solution = solve(fixed.program)
        assert solution is not None
        assert fixed.assignments(solution.full) == assignments
        assert solution.cost == price_of_plan(case, assignments).total_bytes


def test_sides_are_read_off_the_variables() -> None:
    text = PROGRAMS["a block"].replace("contracted=64", "accumulates=true", 1)
    problem = problem_of(text)
    full = np.zeros(len(problem.program.costs), np.bool_)
    assert problem.assignments(full)["linear"] == "low"
    full[problem.makes["linear"]] = True
    assert problem.assignments(full)["linear"] == "accumulator"
    full[problem.reads["linear"]] = True
    assert problem.assignments(full)["linear"] == "full"


def test_what_a_moved_weight_lies_beside_is_read_as_it_is_stored() -> None:
    """Such an op casts no wider operand beside its first, whoever moves them."""
    text = """
        %v: f32[64] parameter
        %w: f32[512,64] parameter
        cat = cat(%w, %v) -> %c: f32[64,64]
          | region="loop" operand_rule="lead"
        exp = gelu(%w) -> %e: f32[512,64]
        return %e
    """
    assert not [key for key in problem_of(text).casts if key[0] == "v"]


def casts_of(
    text: str, *, keep_parameter_dtype: bool = False
) -> Mapping[tuple[object, ...], SharedCast]:
    problem = problem_of(text, keep_parameter_dtype=keep_parameter_dtype)
    return {tuple(key): cast for key, cast in problem.casts.items()}


BLOCK = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    one = linear(%x, %w) -> %h: f32[4,8]
    two = linear(%x, %w) -> %k: f32[4,8]
    return %h
"""


def test_readers_share_a_cast() -> None:
    down = casts_of(BLOCK)["x", "bfloat16", "", 0, False, 1]
    assert down.cases == [(FULL, (2,)), (FULL, (3,))]
    assert down.cost == 32 * 6


def test_a_weight_has_a_cast_where_it_may_be_stored_full() -> None:
    assert casts_of(BLOCK)["w", "bfloat16", "", 0, False, 1].cost == 64 * 6


def test_a_weight_that_the_model_mixes_itself_is_cast_once_at_conversion() -> None:
    text = """
        %x: f32[4,8] input
        %w: f64[8,8] parameter
        add = add(%x, %w) -> %h: f64[4,8]
          | reads=["float32", "float32"]
        return %h
    """
    trained = problem_of(text, keep_parameter_dtype=True).program.constant
    assert trained - problem_of(
        text, keep_parameter_dtype=False
    ).program.constant == 64 * (8 + 4)


def test_trained_weights_pay_for_their_casts() -> None:
    found = casts_of(BLOCK, keep_parameter_dtype=True)
    assert found["w", "bfloat16", "", 0, False, 1].cost == 64 * 6


def test_an_output_is_cast_back() -> None:
    assert casts_of(BLOCK)["h", "float32", "", 0, False, 1].up


def test_a_body_has_casts_of_its_own() -> None:
    text = BLOCK.replace(
        "two = linear(%x, %w) -> %k: f32[4,8]",
        'two = linear(%x, %w) -> %k: f32[4,8]\n      | region="loop"',
    )
    found = casts_of(text)
    assert ("x", "bfloat16", "", 0, False, 1) in found
    assert ("x", "bfloat16", "loop", 0, False, 1) in found
    assert ("w", "bfloat16", "loop", 0, False, 1) in found


def test_a_cast_in_a_loop_is_paid_at_each_turn_and_one_before_it_once() -> None:
    found = casts_of("""
        %x: f32[3,4,8] input
        %w: f32[8,8] parameter
        exp = exp(%x) -> %e: f32[3,4,8]
        loop.in0 = enter(%e) -> %s: f32[4,8]
          | region="loop"
        dot = matmul(%s, %w) -> %d: f32[4,8]
          | region="loop" trips=3
        loop.out0 = carry(%d) -> %y: f32[4,8]
          | trips=3
        return %y
    """)
    assert found["s", "bfloat16", "loop", 0, False, 3].cost == 3 * 32 * 6
    assert found["d", "float32", "", 0, False, 3].cost == 3 * 32 * 6


def test_what_is_written_in_place_is_cast_anew() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        add = add(%x, %x) -> %a: f32[4,8]
        one = linear(%a, %w) -> %h: f32[4,8]
        relu = relu(%a) -> %r: f32[4,8] alias %a
          | mutates=[0]
        two = linear(%a, %w) -> %k: f32[4,8]
        return %k
    """
    versions = {key[3] for key in casts_of(text) if key[0] == "a"}
    assert versions == {0, 1}


def test_a_kernel_that_promotes_pays_if_all_is_low_unless_a_weight_is_always_full() -> (
    None
):
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        %b: f32[8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        two = linear(%h, %w) -> %k: f32[4,8]
        add = add(%h, %OTHER) -> %a: f32[4,8]
          | operand_rule="promote"
        return %a
    """

    def promotions(other: str) -> list[int]:
        casts = problem_of(text.replace("OTHER", other)).casts.values()
        return [len(low) for cast in casts for _, low in cast.cases if len(low) > 1]

    assert promotions("k") == [2, 2]
    assert promotions("b") == promotions("x") == []


def test_a_dtype_argument_and_a_scalar_beside_a_tensor_cost_nothing() -> None:
    text = """
        %x: f32[4,8] input
        %s: f32[] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        mul = mul(%h, %s) -> %m: f32[4,8]
          | operand_rule="promote"
        softmax = softmax(%m) -> %y: f32[4,8]
          | has_dtype_argument=true
        return %y
    """
    keys = {key[0] for key in casts_of(text)}
    assert keys == {"x", "w", "h"}  # neither %s nor %m
