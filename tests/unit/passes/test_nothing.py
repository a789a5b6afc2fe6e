"""Why nothing was lowered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import PLACEMENTS, Setting, make_plan
from amprewrite.policy import Matcher, load_policy

GRAPH = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %y: f32[4,8]
linear_1 = linear(%y, %w) -> %z: f32[4,8]
return %z
"""


def warning(text: str, overrides: Sequence[dict[str, Any]] = ()) -> str:
    matcher = Matcher(load_policy("bf16"), overrides)
    (line,) = make_plan(parse_graph(text), matcher, Setting()).warnings
    assert line.startswith("rewritten 0 of ")
    return line


def test_the_users_own_rules_are_named() -> None:
    found = warning(GRAPH, [{"op": "linear", "class": "deny"}])
    assert found.endswith(
        "the policy allows 2 of them, which are kept: overrides[0], rule "
        "{ op = 'linear', class = 'deny' }"
    )


def test_the_reason_of_a_rule_is_said() -> None:
    rule = {"op": "linear", "class": "deny", "why": "it is tiny"}
    assert warning(GRAPH, [rule]).endswith("kept: overrides[0], it is tiny")


def test_what_fences_them_in_is_said() -> None:
    graph = parse_graph(GRAPH)
    fenced = replace(
        graph, ops=tuple(replace(op, fence="a region") for op in graph.ops)
    )
    plan = make_plan(fenced, Matcher(load_policy("bf16")), Setting())
    assert plan.warnings[0].endswith("allows 2 of them, which are kept: a region")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_exactness_is_said_where_it_decided(placement: str) -> None:
    text = GRAPH.replace("return %z", "floor = floor(%z) -> %i: f32[4,8]\nreturn %i")
    matcher = Matcher(load_policy("bf16"))
    (line,) = make_plan(parse_graph(text), matcher, Setting(placement)).warnings
    assert line.endswith(
        "the policy allows 2 of them, which are kept: floor needs an exact argument: "
        "its producers stay full"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%x: f32[4] input\ny = exp(%x) -> %y: f32[4]\nreturn %y", "no allow op of"),
        (GRAPH.replace("f32", "bf16"), "the model is already in bfloat16"),
    ],
)
def test_there_is_nothing_to_lower(text: str, words: str) -> None:
    assert words in warning(text)
