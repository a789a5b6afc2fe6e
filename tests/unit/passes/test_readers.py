"""The ops that need a number unrounded, and the way to them."""

from textwrap import dedent

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.guards import Readers
from amprewrite.policy import Matcher, load_policy

TEXT = """
    %x: f32[4,4] input
    %w: f32[4,4] parameter
    fill = masked_fill(%x) -> %f: f32[4,4]
    turn = transpose(%f) -> %t: f32[4,4]
    {}
    return
"""
MATMUL = """
    product = matmul(%t, %w) -> %p: f32[4,4]
      | contracted=4
"""


def path(kind: str, line: str) -> tuple[str, ...]:
    graph = parse_graph(dedent(TEXT.format(line.strip())).strip())
    classes = classify(graph, Matcher(load_policy("bf16")))
    readers = Readers(graph, classes, kind)  # pyright: ignore[reportArgumentType]
    return readers.path(graph.op_by_name["fill"])


@pytest.mark.parametrize(
    ("line", "edge", "beyond"),
    [
        ("log = log(%t) -> %y: f32[4,4]", True, True),
        ("sqrt = sqrt(%t) -> %y: f32[4,4]", True, True),
        ("gt = gt(%t) -> %y: b8[4,4]", True, False),
        ("softmax = softmax(%t) -> %y: f32[4,4]", True, False),
        ("gelu = gelu(%t) -> %y: f32[4,4]", False, False),
        (MATMUL, False, False),
    ],
)
def test_ops_that_need_a_number(line: str, *, edge: bool, beyond: bool) -> None:
    reader = line.split(maxsplit=1)[0]
    way = ("turn", reader)
    assert path("edge", line) == (way if edge else ())
    assert path("range", line) == (way if beyond else ())
    assert path("mask", line) == (way if reader == "softmax" else ())
