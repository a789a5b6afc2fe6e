"""Numbers of constants, through moves, fillers and sums of constants."""

from math import isnan
from textwrap import dedent

from amprewrite.ir import parse_graph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.guards import known_numbers
from amprewrite.policy import Matcher, load_policy


def numbers_of(text: str) -> dict[str, tuple[float, ...]]:
    graph = parse_graph(dedent(text).strip())
    return known_numbers(graph, classify(graph, Matcher(load_policy("bf16"))))


def test_numbers_are_moved_and_filled_in() -> None:
    numbers = numbers_of("""
        %x: f32[4] input
        %c: f32[] constant = 1e-08
        %b: f32[2] buffer = -1000000000.0
        wide = expand(%c) -> %w: f32[4]
        full = full() -> %f: f32[4]
          | literals=[0.999]
        like = full_like(%x) -> %l: f32[4]
          | literals=[0.5] operand_rule="any"
        cat = cat(%w, %b) -> %j: f32[6]
        moved = cat(%w, %x) -> %m: f32[8]
        return %j, %m
    """)
    assert numbers["w"] == (1e-8,)
    assert numbers["f"] == (0.999,)
    assert numbers["l"] == (0.5,)
    assert numbers["j"] == (1e-8, -1e9)
    assert "m" not in numbers


def test_a_sum_of_constants_and_a_scalar_argument_are_known_at_run_time() -> None:
    numbers = numbers_of("""
        %x: f32[4] input
        %s: f32[] input
        %c: f32[] constant = 1e-08
        sub = sub(%c) -> %d: f32[]
          | literals=[1.0]
        add = add(%x, %c) -> %a: f32[4]
        ones = ones() -> %o: f32[4]
        mul = mul(%o) -> %m: f32[4]
          | literals=[0.999]
        return %a, %d, %s, %m
    """)
    assert isnan(numbers["d"][0])
    assert isnan(numbers["s"][0])
    assert isnan(numbers["m"][0])
    assert "a" not in numbers
