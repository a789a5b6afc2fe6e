"""What a fusing compiler keeps out of memory, and who reads the rest."""

from dataclasses import replace

import pytest

from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.cost.cost import Fusion
from amprewrite.passes.cost.cost_model import COMPILED, EAGER, CostModel
from amprewrite.plan.hardware import Kernels
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %i: i64[4] input
    gelu = gelu(%x) -> %g: f32[4,8]
    exp = exp(%g) -> %e: f32[4,8]
    linear = linear(%e, %w) -> %h: f32[4,8]
      | accumulates=true contracted=8
    view = view(%h) -> %v: f32[32] alias %h
    relu = relu(%v) -> %r: f32[32]
    late = mul(%e, %g) -> %l: f32[4,8]
    after = add(%r, %e) -> %a: f32[32]
    less = lt(%a, %r) -> %b: bool[32]
    enter = enter(%a) -> %n: f32[32]
      | region="loop"
    inner = exp(%n) -> %o: f32[32]
      | region="loop" trips=3
    strange = strange_op(%o) -> %s: f32[32]
    return %s, %r
"""
SUMS = replace(COMPILED, kernels=Kernels(accumulators=True))


def fusion(model: CostModel = COMPILED, text: str = TEXT) -> Fusion:
    graph = graph_of(text)
    return Fusion(graph, classify(graph, Matcher(load_policy("bf16"))), model)


def test_kernels_are_generated_for_all_but_libraries_views_and_boundaries() -> None:
    found = fusion()
    assert found.kernels == {
        "gelu", "exp", "relu", "late", "after", "less", "inner",
    }  # fmt: skip
    assert not fusion(EAGER).kernels


def test_a_kernel_does_the_casts_of_what_it_makes_and_of_what_it_reads() -> None:
    found = fusion()
    assert found.absorbs("e", ["linear"])
    assert found.absorbs("h", ["relu", "after"])
    assert not found.absorbs("h", ["relu", "linear"])
    assert not found.absorbs("x", ["linear"])
    assert not found.absorbs("n", ["enter"])
    assert found.absorbs("n", ["inner"])
    assert not found.absorbs("h", ["view"])
    assert not found.absorbs("h", [])
    assert not fusion(EAGER).absorbs("e", ["linear"])


def test_what_a_library_a_loop_or_an_output_wants_is_written_for_it() -> None:
    found = fusion()
    ops = found.graph.op_by_name
    assert [n for n in found.graph.values if found.is_versioned(n)] == [
        "g", "e", "r", "l", "a", "b", "o",
    ]  # fmt: skip
    assert found.wants(ops["linear"], 0)
    assert found.wants(ops["enter"], 0)
    assert found.wants(ops["strange"], 0)
    assert not found.wants(ops["exp"], 0)
    assert not found.wants(ops["linear"], 1)
    assert not found.wants(ops["view"], 0)
    assert found.written("a", 4) == 128
    assert found.written("o", 2) == 3 * 64


def test_a_kernel_reads_what_was_written_for_a_library() -> None:
    """Not what was written for nobody: where that is kept, is up to the compiler."""
    found = fusion()
    ops = found.graph.op_by_name
    assert found.wants(ops["late"], 0)
    assert found.is_read(ops["late"], 0)
    assert not found.is_read(ops["after"], 1)
    assert not found.is_read(ops["late"], 1)
    assert not found.wants(ops["exp"], 0)


def test_kernels_read_what_they_did_not_make_once() -> None:
    text = TEXT.replace("late = mul(%e, %g)", "late = mul(%x, %g)")
    found = fusion(text=text)
    ops = found.graph.op_by_name
    assert found.is_read(ops["gelu"], 0)
    assert not found.is_read(ops["late"], 0)
    assert found.is_read(ops["relu"], 0)
    everywhere = fusion(EAGER)
    assert all(
        everywhere.is_read(op, index)
        for op in everywhere.graph.ops
        for index in range(len(op.operands))
    )


def test_accumulators_are_in_memory_in_full() -> None:
    found = fusion(SUMS)
    linear = found.graph.op_by_name["linear"]
    assert found.hands_sums(linear)
    assert (found.is_sum("h"), found.is_sum("v"), found.is_sum("e")) == (1, 1, 0)
    assert not found.is_rounded_alone(linear)
    for model in (COMPILED, replace(EAGER, kernels=Kernels(accumulators=True))):
        other = fusion(model)
        assert not other.hands_sums(linear)
        assert not other.is_sum("h")


@pytest.mark.parametrize("outside", ["strange_op(%v)", "linear(%h, %w)"])
def test_a_library_wants_them_rounded_in_a_pass_of_their_own(outside: str) -> None:
    found = fusion(SUMS, TEXT.replace("strange_op(%o)", outside))
    assert found.is_rounded_alone(found.graph.op_by_name["linear"])


def test_what_is_written_in_place_has_one_dtype() -> None:
    text = """
        %x: f32[4] input
        gelu = gelu(%x) -> %g: f32[4]
        relu = relu(%g) -> %r: f32[4] alias %g
          | mutates=[0]
        return %r
    """
    found = fusion(text=text)
    assert found.makes("g")
    assert not found.is_versioned("g")
