"""Steps: ops, and bodies that run as a whole."""

from amprewrite.ir import check_graph, parse_graph
from amprewrite.passes.recompute import bodies, is_repeatable, steps_of

LOOP = """%x: f32[4] input
enter = carry(%x) -> %c: f32[4]
  | region="scan" trips=1
sin = sin(%c) -> %s: f32[4]
  | region="scan" trips=5
leave = leave(%s) -> %y: f32[4]
  | trips=5
return %y
"""

RULE = """%x: f32[4] input
enter = boundary(%x) -> %c: f32[4]
  | region="rule"
sin = sin(%c) -> %s: f32[4]
  | region="rule"
leave = boundary(%s) -> %y: f32[4]
exp = exp(%y) -> %z: f32[4]
return %z
"""


def test_the_body_of_a_loop_has_steps_of_its_own() -> None:
    graph = check_graph(parse_graph(LOOP))
    assert bodies(graph) == ("", "scan")
    assert [step.repeatable for step in steps_of(graph, "scan")] == [False, True]
    whole, left = steps_of(graph, "")
    assert (len(whole.ops), whole.repeatable, left.repeatable) == (2, False, False)


def test_a_custom_rule_is_one_step() -> None:
    graph = check_graph(parse_graph(RULE))
    assert bodies(graph) == ("",)
    rule, left, exp = steps_of(graph, "")
    assert (rule.operands, rule.results, rule.repeatable) == (("x",), ("s",), True)
    assert left.repeatable
    assert exp.operands == ("y",)


def test_writes_and_fences_do_not_run_twice() -> None:
    text = """%x: f32[4] input
sin = sin(%x) -> %s: f32[4]
kept = sin(%s) -> %t: f32[4]
  | fence="of the user"
written = exp(%s) -> %u: f32[4]
  | mutates=[0]
return %t, %u
"""
    graph = parse_graph(text)
    assert [is_repeatable(op) for op in graph.ops] == [True, False, False]
    assert not any(step.repeatable for step in steps_of(graph, ""))
