"""Compounds by the calls of ops, by kernels and by structure."""

from amprewrite.plan import join_plans
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | calls=["cross_entropy#1"]
exp = exp(%h) -> %e: f32[4,8]
  | calls=["cross_entropy#1", "softmax#7"]
div = div(%e) -> %d: f32[4,8]
  | calls=["cross_entropy#1", "softmax#7"]
dot = matmul(%d, %h) -> %o: f32[4,8]
  | calls=["attention#1"]
scale = mul(%o) -> %m: f32[4,8]
  | calls=["attention#1", "softmax#9"]
gelu = gelu(%m) -> %g: f32[4,8]
max = amax(%g) -> %a: f32[4]
  | calls=["log_softmax#1", "logsumexp#1"]
log = log(%a) -> %l: f32[4]
  | calls=["log_softmax#1"]
return %l
"""


def test_ops_are_counted_in_the_outermost_call_that_is_a_compound() -> None:
    found = {c.call: [d.op for d in c.ops] for c in plan_of(TEXT).compounds}
    assert found == {
        "softmax#1": ["exp", "div"],
        "attention#1": ["dot"],
        "softmax#2": ["scale"],
        "gelu#1": ["gelu"],
        "log_softmax#1": ["max", "log"],
    }, "a cross entropy with a linear layer in it is a whole model"


def test_graphs_have_calls_of_their_own() -> None:
    plan = join_plans([plan_of(TEXT), plan_of(TEXT)])
    sizes = [len(c.ops) for c in plan.compounds if c.name == "softmax"]
    assert sizes == [2, 1, 2, 1]


def test_a_compound_is_where_its_first_op_is() -> None:
    text = """
    %x: f32[4] input
    exp = exp(%x) -> %e: f32[4]
      | path="a.b" source="m.py:3" calls=["softmax#1"]
    return %e
    """
    (compound,) = plan_of(text).compounds
    assert (compound.path, compound.source) == ("a.b", "m.py:3")
