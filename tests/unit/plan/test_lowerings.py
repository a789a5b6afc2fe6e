"""Records of a lowering as text."""

from dataclasses import replace

from amprewrite.ir import parse_graph
from amprewrite.plan import join_plans
from amprewrite.plan.fields import Lowering
from amprewrite.plan.lines import lowering_comments, lowering_line, lowering_texts
from amprewrite.plan.model import Plan
from amprewrite.plan.page import plan_page

FOUND = (
    Lowering("no_ops", ("drop", "drop_1"), "removed"),
    Lowering("constants", ("arange", "mul"), "computed once", 4096),
    Lowering("constants", ("triu",), "computed once", 64),
)
PLAN = Plan("bf16", "promote", "bfloat16", "float32", "test", (), (), lowerings=FOUND)
BARE = replace(PLAN, lowerings=())


def test_a_line_counts_the_ops_and_the_bytes_of_each_kind() -> None:
    line = lowering_line(FOUND)
    assert line == "2 ops removed; 3 ops computed once (4,160 bytes)"
    assert f"calls run lowered: {line}" in str(PLAN)
    assert "lowered:" not in str(BARE)
    assert lowering_line(()) == ""


def test_comments_follow_the_text_of_a_graph_and_are_not_parsed() -> None:
    graph = "%x: f32[2] input\nrelu = relu(%x) -> %relu: f32[2]\nreturn %relu\n"
    comments = lowering_comments(FOUND)
    assert "# constants: triu computed once, 64 bytes\n" in comments
    assert parse_graph(graph + comments) == parse_graph(graph)


def test_the_record_is_saved_and_compares_no_plans() -> None:
    loaded = Plan.from_json(PLAN.to_json())
    assert loaded.lowerings == FOUND
    assert PLAN == BARE
    assert hash(PLAN) == hash(BARE)


def test_a_difference_names_what_one_program_alone_was_lowered_by() -> None:
    other = replace(PLAN, lowerings=FOUND[:2])
    line = f"lowered {list(lowering_texts(FOUND))[2]}: only in the first plan"
    assert PLAN.diff(other) == (line,)
    assert PLAN.diff(BARE) == ()  # which may not have been converted


def test_the_programs_of_one_model_have_numbered_ops() -> None:
    joined = join_plans([PLAN, BARE, PLAN])
    assert [one.ops[0] for one in joined.lowerings[::3]] == [
        "graph0.drop",
        "graph2.drop",
    ]


def test_the_page_has_a_figure_and_a_table() -> None:
    page, bare = plan_page(PLAN), plan_page(BARE)
    assert page.tables[-1].rows[0] == ("no_ops", "drop, drop_1", "removed", 0)
    assert "ops lowered in calls" in [fact.label for fact in page.facts]
    assert len(bare.tables) == len(page.tables) - 1
    assert len(bare.facts) == len(page.facts) - 1
