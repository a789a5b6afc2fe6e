"""What a solver may decide: assignments, pins, ties."""

from dataclasses import replace

import pytest

from amprewrite.policy import load_policy
from tests.placement_problem import freedom_of
from tests.properties.placements import all_sides

BLOCK = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    turn = transpose(%w) -> %t: f32[8,8] alias %w
    linear = linear(%x, %t) -> %h: f32[4,8]
      | accumulates=true
    gelu = gelu(%h) -> %g: f32[4,8]
    exp = exp(%g) -> %e: f32[4,8]
    argmax = argmax(%e) -> %i: i64[4]
    return %e, %i
"""


def test_ops_of_free_classes_have_sides() -> None:
    freedom = freedom_of(BLOCK)
    assert freedom.assignable == ("linear", "gelu")
    assert freedom.options("linear") == ("low", "full", "accumulator")
    assert freedom.options("gelu") == ("low", "full")


def test_an_op_that_moves_a_weight_is_what_the_weight_is_unless_it_is_trained() -> None:
    assert freedom_of(BLOCK).moved == {"turn"}
    trained = freedom_of(BLOCK, keep_parameter_dtype=True)
    assert (trained.moved, trained.assignable[0]) == (frozenset(), "turn")


def test_what_makes_an_exact_argument_is_pinned() -> None:
    text = BLOCK.replace("exp = exp", "exp = sin")
    pinned = freedom_of(text).pinned
    assert pinned["gelu"].startswith("exp needs an exact argument")


def test_a_number_that_low_cannot_hold_pins_its_op() -> None:
    text = BLOCK.replace("-> %g: f32[4,8]", "-> %g: f32[4,8]\n      | literals=[1e-8]")
    assert "does not survive" in freedom_of(text, "fp16").pinned["gelu"]


def test_a_table_that_is_only_looked_up_stays_as_the_policy_says() -> None:
    text = """
        %t: f32[100,8] parameter
        %i: i64[4] input
        rows = embedding(%t, %i) -> %e: f32[4,8]
        return %e
    """
    low = replace(load_policy("bf16"), lookups="low")
    assert freedom_of(text).pinned.keys() == {"rows"}
    assert freedom_of(text, low).assignable == ("rows",)


NORM = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %l: f32[4,8]
    add = add(%l, %l) -> %h: f32[4,8]
    mean = mean(%h) -> %m: f32[4,1]
    square = square(%h) -> %q: f32[4,8]
    power = mean(%q) -> %p: f32[4,1]
    own = mul(%m, %m) -> %o: f32[4,1]
    variance = sub(%p, %o) -> %v: f32[4,1]
    centre = sub(%h, %m) -> %c: f32[4,8]
    scale = rsqrt(%v) -> %r: f32[4,1]
    mul = mul(%c, %r) -> %y: f32[4,8]
    last = linear(%y, %w) -> %z: f32[4,8]
    return %z
"""


def test_what_cancels_in_a_norm_is_pinned() -> None:
    pinned = freedom_of(NORM).pinned
    assert pinned["add"].startswith("its mean is subtracted from it")
    assert pinned["square"].startswith("a square doubles")
    assert pinned["own"].startswith("a square doubles")
    assert pinned["variance"].startswith("it is made of statistics")


def test_a_difference_from_a_mean_is_low_only_where_the_value_is() -> None:
    freedom = freedom_of(NORM)
    assert freedom.requires_low["centre"] == ("add",)
    assignments = max(
        all_sides(freedom), key=lambda found: [*found.values()].count("full")
    )
    assert freedom.allows(assignments)
    assert not freedom.allows({**assignments, "centre": "low"})


def test_a_policy_without_demand_pins_nothing_for_it() -> None:
    policy = replace(load_policy("bf16"), demand=False)
    freedom = freedom_of(NORM, policy)
    assert (dict(freedom.pinned), dict(freedom.requires_low)) == ({}, {})


WRITES = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    relu = relu(%h) -> %r: f32[4,8] alias %h
      | mutates=[0]
    view = view(%h) -> %v: f32[32] alias %h
    return %v
"""


def test_what_touches_a_written_storage_has_one_side() -> None:
    freedom = freedom_of(WRITES)
    assert freedom.members == {"h": ("relu", "view")}
    assert freedom.makers == {"h": ("linear",)}
    assert freedom.allows({"linear": "low", "relu": "low", "view": "low"})
    assert freedom.allows({"linear": "low", "relu": "full", "view": "full"})
    assert not freedom.allows({"linear": "low", "relu": "full", "view": "low"})
    assert not freedom.allows({"linear": "full", "relu": "low", "view": "low"})


@pytest.mark.parametrize("op", ["exp", "softmax"])
def test_a_denied_write_pins_all_who_touch_the_storage(op: str) -> None:
    freedom = freedom_of(WRITES.replace("relu(%h)", f"{op}(%h)"))
    assert freedom.pinned.keys() == {"view"}
    assert freedom.full_storages == {"h"}


def test_a_value_that_enters_a_body_has_no_side_of_its_own() -> None:
    text = """
        %x: f32[4,8] input
        add = add(%x, %x) -> %a: f32[4,8]
        in0 = enter(%a) -> %b: f32[4,8]
          | region="loop"
        out0 = carry(%b) -> %c: f32[4,8]
        return %c
    """
    freedom = freedom_of(text)
    assert (freedom.assignable, freedom.moved) == (("add",), {"in0"})
