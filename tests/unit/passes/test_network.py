"""The pieces of a program and their makers."""

from amprewrite.ir import parse_graph
from amprewrite.passes.recompute import gradient_passes, network_of
from tests.plan_text import plan_of

TEXT = """%x: f32[64,64] input
%w: f32[64,64] parameter
first = matmul(%x, %w) -> %h: f32[64,64]
exp = exp(%h) -> %e: f32[64,64]
last = matmul(%e, %w) -> %y: f32[64,64]
return %y
"""


def test_casts_are_pieces_of_their_own() -> None:
    graph = parse_graph(TEXT)
    plan = plan_of(TEXT, training=True)
    found = network_of(graph, plan, "", gradient_passes(graph))
    size = 64 * 64
    assert found.bytes["x", "float32"] == found.bytes["w", "float32"] == 0
    assert found.bytes["e", "float32"] == 4 * size
    assert found.bytes["e", "bfloat16"] == 2 * size
    assert {("x", "bfloat16"), ("w", "bfloat16")} <= set(found.wanted)
    assert {("e", "float32"), ("e", "bfloat16")} <= set(found.wanted)
    again = {maker.makes[0]: maker.repeatable for maker in found.makers}
    assert again["e", "float32"]
    assert again["e", "bfloat16"]
    assert not again["h", plan.by_op["first"].results[0]]
