"""Tables of a plan for its page."""

from amprewrite.page.model import Column
from amprewrite.plan.page import (
    casts_table,
    difference_tables,
    differing_ops,
    ops_table,
)
from tests.plan_text import SMALL, plan_of


def test_measured_columns_stand_after_the_precision_and_others_in_the_details() -> None:
    table = ops_table(plan_of(SMALL), [(Column("share", "share"), {"exp": 0.5})])
    shown = [column.title for column in table.columns if not column.hidden]
    assert shown[:4] == ["op", "computes", "share", "class"]
    assert [row[2] for row in table.rows] == [None, 0.5]
    hidden = {c.title: i for i, c in enumerate(table.columns) if c.hidden}
    assert table.rows[0][hidden["reads"]] == "bfloat16, bfloat16"
    assert table.rows[0][hidden["name in policies"]] == "linear"
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_casts_are_sorted_by_bytes_at_first() -> None:
    table = casts_table(plan_of(SMALL))
    assert table.sort == "bytes"
    assert table.sort in [column.title for column in table.columns]


def test_plans_that_decide_the_same_differ_nowhere() -> None:
    plan = plan_of(SMALL)
    other = plan_of(SMALL, overrides=[{"op": "linear", "class": "deny"}])
    assert differing_ops(plan, plan) == frozenset()
    assert differing_ops(plan, other) == {"linear"}
    _, lines = difference_tables(plan, plan)
    assert (lines.rows, lines.lead) == ((), "The two plans decide the same.")
