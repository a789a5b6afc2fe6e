"""The values that derivatives read."""

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes.recompute import gradient_passes, read_by_derivative

HEAD = """%x: f32[4,8] input
%w: f32[8,8] parameter
%i: i64[4] input
%b: bool[4,8] input
"""


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("op = matmul(%x, %w)", {0, 1}),
        ("op = add(%x, %x)", set()),
        ("op = mul(%x, %x)", {0, 1}),
        ("op = mul(%x)", set()),
        ("op = exp(%x)", {"y"}),
        ("op = gelu(%x)", {0}),
        ("op = where(%b, %x, %x)", {0}),
        ("op = index_select(%x, %i)", {1}),
        ("op = amax(%x)", {0, "y"}),
        ("op = detach(%x)", set()),
        ("op = cast(%i)", set()),
    ],
)
def test_a_derivative_reads(line: str, read: set[int | str]) -> None:
    graph = parse_graph(f"{HEAD}{line} -> %y: f32[4,8]\nreturn %y")
    reached = gradient_passes(graph)
    assert set(read_by_derivative(graph, graph.ops[0], reached)) == read
