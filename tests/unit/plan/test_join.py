"""The plans of several graphs as one."""

from dataclasses import replace

from amprewrite.plan import Plan, join_plans
from tests.plan_text import cast_lines, plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
square = square(%h) -> %q: f32[4,8]
mean = mean(%q) -> %m: f32[4]
return %m, %h
"""


def two_plans() -> list[Plan]:
    return [plan_of(TEXT), plan_of(TEXT).with_warnings("odd")]


def test_a_single_plan_is_handed_back() -> None:
    plan = plan_of(TEXT)
    assert join_plans([plan]) is plan


def test_names_get_the_number_of_their_graph() -> None:
    joined = join_plans(two_plans())
    assert [d.op for d in joined.decisions][2:4] == ["graph0.mean", "graph1.linear"]
    assert joined.by_op["graph1.square"].causes == ("graph1.mean",)
    assert joined.storage == (("graph0.w", "bfloat16"), ("graph1.w", "bfloat16"))
    assert cast_lines(join_plans([plan_of("return"), plan_of(TEXT)])) == (
        "%graph1.w: f32[8,8] -> bf16 for graph1.linear (storage)\n"
        "%graph1.x: f32[4,8] -> bf16 for graph1.linear\n"
        "%graph1.h: bf16[4,8] -> f32 for graph1.square, output[1]"
    )


def test_outputs_and_inputs_keep_having_no_op() -> None:
    joined = join_plans(two_plans())
    assert {cast.producer for cast in joined.casts} == {
        "",
        "graph0.linear",
        "graph1.linear",
    }
    assert all(use[0] != "graph0.output" for cast in joined.casts for use in cast.uses)


def test_costs_add_up_and_warnings_are_said_once() -> None:
    one, two = two_plans()
    joined = join_plans([one, two, two])
    assert joined.cost.cast_bytes == 3 * one.cost.cast_bytes
    assert joined.cost.casts == 6
    assert joined.cost.lower_bound is None
    assert joined.warnings == ("odd",)


def test_the_number_of_graphs_is_told() -> None:
    assert join_plans(two_plans()).captured == "given as a graph, 2 graphs"


def test_a_joined_plan_explains_its_ops() -> None:
    assert "because  graph0.mean" in join_plans(two_plans()).explain("graph0.square")


def test_a_certificate_of_all_graphs_is_one_of_the_whole() -> None:
    one, two = two_plans()
    sure = [
        replace(p, cost=replace(p.cost, lower_bound=n)) for n, p in ((3, one), (4, two))
    ]
    assert join_plans(sure).cost.lower_bound == 7
    assert join_plans([sure[0], two]).cost.lower_bound is None
