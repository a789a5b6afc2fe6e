"""Facts about values: weights and what is made of them, literals, mutations."""

from textwrap import dedent

import pytest

from amprewrite.ir import Op, ProgramGraph, parse_graph
from amprewrite.ops import op_table
from amprewrite.passes.analysis import values
from amprewrite.passes.analysis.classify import classify
from amprewrite.policy import Matcher, load_policy
from amprewrite.policy.match import Match


def classified(text: str) -> tuple[ProgramGraph, dict[str, Match]]:
    graph = parse_graph(dedent(text).strip())
    return graph, classify(graph, Matcher(load_policy("bf16")))


def roots_of(text: str) -> dict[str, set[str]]:
    found = values.weight_roots(*classified(text), "float32")
    return {name: set(roots) for name, roots in found.items()}


def test_a_weight_is_seen_through_data_movement_and_full_casts() -> None:
    assert roots_of("""
        %w: f32[4,4] parameter
        %b: f32[4,4] buffer
        t = transpose(%w) -> %t: f32[4,4] alias %w
        cat = cat(%t, %b) -> %c: f32[8,4]
        cast = cast(%c) -> %d: f32[8,4]
          | dtype_argument="float32"
        gelu = gelu(%d) -> %g: f32[8,4]
        return %g
    """) == {"w": {"w"}, "b": {"b"}, "t": {"w"}, "c": {"w", "b"}, "d": {"w", "b"}}


def test_a_weight_beside_an_activation_is_an_activation() -> None:
    roots = roots_of("""
        %x: f32[4] input
        %w: f32[4] parameter
        cat = cat(%x, %w) -> %c: f32[8]
        return %c
    """)
    assert "c" not in roots


def test_rows_chosen_by_an_input_are_an_activation() -> None:
    roots = roots_of("""
        %ids: i64[2] input
        %fixed: i64[2] buffer
        %w: f32[9,4] parameter
        a = index(%w, %ids) -> %a: f32[2,4]
        b = index(%w, %fixed) -> %b: f32[2,4]
        return %a, %b
    """)
    assert "a" not in roots
    assert roots["b"] == {"w"}


def test_what_is_written_in_place_is_no_weight() -> None:
    roots = roots_of("""
        %x: f32[4] input
        %state: f32[4] buffer
        t = view(%state) -> %t: f32[4] alias %state
        add = add(%t, %x) -> %u: f32[4] alias %state
          | mutates=[0]
        return
    """)
    assert roots == {}


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i64"])
def test_a_parameter_of_another_dtype_is_no_weight(dtype: str) -> None:
    assert roots_of(f"%w: {dtype}[4] parameter\nreturn") == {}


def test_a_tensor_filled_with_one_number_counts_as_a_weight() -> None:
    roots = roots_of("""
        zeros = zeros() -> %z: f32[4]
        ones = ones() -> %n: i64[4]
        fenced = ones() -> %f: f32[4]
          | fence="body"
        inner = ones() -> %i: f32[4]
          | region="body"
        used = zeros() -> %u: f32[4]
        add = add(%u, %z) -> %v: f32[4] alias %u
          | mutates=[0]
        return
    """)
    assert roots == {"z": {"z"}}


def test_mutated_storages_are_named_by_their_owner() -> None:
    graph, _ = classified("""
        %x: f32[4] input
        v = view(%x) -> %v: f32[4] alias %x
        a = add(%v, %v) -> %a: f32[4] alias %x
          | mutates=[0]
        return
    """)
    assert values.mutated_storages(graph) == {"x"}


def test_values_made_of_literals_only_are_weak() -> None:
    graph, classes = classified("""
        %c: f32[] constant
        %w: f32[] parameter
        %x: f32[4] input
        fill = full() -> %f: f32[]
        both = mul(%c, %f) -> %b: f32[]
        wide = full() -> %wide: f32[4]
        moved = view(%wide) -> %moved: f32[2,2]
        tiny = full() -> %tiny: f32[4]
          | literals=[1e-45]
        bound = mul(%b, %w) -> %bound: f32[]
        total = sum(%x) -> %total: f32[]
        grown = add(%f, %c) -> %grown: f32[] alias %f
          | mutates=[0]
        return
    """)
    weak = values.weak_values(graph, classes, "bfloat16")
    assert weak == {"c", "f", "b", "wide", "moved"}


def test_values_with_numbers_beyond_the_low_range_are_extreme() -> None:
    text = """
        %keep: f32[4] input
        rsub = rsub(%keep) -> %r: f32[4]
          | literals=[1.0]
        mul = mul(%r) -> %m: f32[4]
          | literals=[-3.4028234663852886e+38]
        move = unsqueeze(%m) -> %u: f32[1,4]
        done = softmax(%u) -> %s: f32[1,4]
        hole = full() -> %h: f32[4]
          | literals=[-Infinity]
        return %s
    """
    graph, classes = classified(text)
    assert values.extreme_values(graph, classes, "bfloat16") == {"m", "u"}


@pytest.mark.parametrize(
    ("literals", "low", "lost"),
    [
        ((1e-8, 2.0, 1e9), "float16", [1e-8, 1e9]),
        ((1e-8, 2.0, 1e9), "bfloat16", []),
        ((0.0, float("inf")), "float16", []),
    ],
)
def test_literals_that_do_not_survive(
    literals: tuple[float, ...], low: str, lost: list[float]
) -> None:
    op = Op("a", "add", "", (), (), literals=literals)
    assert list(values.lost_literals(op, low)) == lost


@pytest.mark.parametrize(
    ("canonical", "transparent"), [("view", True), ("cast", True), ("gelu", False)]
)
def test_ops_through_which_a_weight_is_seen(
    canonical: str, *, transparent: bool
) -> None:
    graph, classes = classified(f"""
        %w: f32[4] parameter
        a = {canonical}(%w) -> %a: f32[4]
        return %a
    """)
    op = graph.op_by_name["a"]
    assert values.is_transparent(op, classes["a"].op_class) is transparent


def test_every_filler_is_kept_by_the_policy() -> None:
    ops = load_policy("bf16").ops
    fillers = [name for name, traits in op_table().ops.items() if traits.filler]
    assert {str(ops[name].op_class) for name in fillers} == {"keep"}
