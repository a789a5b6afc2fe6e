"""Rules and marks that round a guard or an exact argument are told."""

from textwrap import dedent

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, load_policy

GUARD = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    product = matmul(%x, %w) -> %p: f32[8,8]
      | contracted=8
    clamp = clamp(%p) -> %c: f32[8,8]
      | literals=[0.999] source="model.py:7"
    sub = sub(%c) -> %s: f32[8,8]
      | literals=[1.0]
    log = log(%s) -> %y: f32[8,8]{}
    return %y
"""
SINE = """
    %x: f32[8,8] input
    product = matmul(%x, %x) -> %p: f32[8,8]
      | contracted=8
    sin = sin(%p) -> %y: f32[8,8]
      | source="model.py:9"
    return %y
"""


def warnings(text: str, *rules: dict[str, object]) -> tuple[str, ...]:
    graph = parse_graph(dedent(text).strip())
    matcher = Matcher(load_policy("bf16"), rules)
    found = make_plan(graph, matcher, Setting()).warnings
    return tuple(line for line in found if "rounds" in line)


@pytest.mark.parametrize("op", ["clamp", "sub", "log"])
def test_a_rule_that_rounds_a_guard_is_named_with_it(op: str) -> None:
    (line,) = warnings(GUARD.format(""), {"op": op, "class": "allow"})
    rule = f"overrides[0] (rule {{ op = '{op}', class = 'allow' }})"
    assert line == (
        f"{rule} rounds a guard (model.py:7): the bound 0.999 of clamp is 1 in "
        "bfloat16, and log reads it; want another class, or no rule"
    )


def test_a_mark_that_rounds_a_guard_is_named_with_it() -> None:
    (line,) = warnings(GUARD.format('\n      | asked="low"'))
    assert "the model asks for low precision here" in line
    assert "the bound 0.999 of clamp" in line


@pytest.mark.parametrize("op", ["product", "clamp", "log"])
def test_a_rule_that_keeps_a_guard_is_not_told(op: str) -> None:
    rule: dict[str, object] = {"op_name": op, "class": "deny"}
    assert not warnings(GUARD.format(""), rule)


def test_a_program_without_rules_has_no_warning() -> None:
    assert not warnings(GUARD.format(""))
    assert not warnings(SINE)


def test_a_rule_that_rounds_an_exact_argument_is_named_with_it() -> None:
    (line,) = warnings(SINE, {"op": "sin", "class": "allow"})
    rule = "overrides[0] (rule { op = 'sin', class = 'allow' })"
    assert line == (
        f"{rule} rounds an argument of sin (model.py:9), which has to be exact; want "
        "deny, or no rule"
    )
