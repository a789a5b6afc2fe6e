"""A plan as rich tables."""

from io import StringIO
from typing import Any

from rich.console import Console

from amprewrite.plan import Plan
from amprewrite.plan.table import casts_by_module, decision_table, plan_html, plan_table
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | path="body.0"
softmax = softmax(%h) -> %p: f32[4,8]
  | path="odd[red]" source="model.py:3" has_dtype_argument=true
return %p
"""


def a_plan() -> Plan:
    return plan_of(TEXT)


def printed(renderable: Any) -> list[list[str]]:
    console = Console(width=160, file=StringIO(), record=True)
    console.print(renderable)
    return [line.split() for line in console.export_text().splitlines()]


def test_there_is_one_row_for_each_module_and_one_for_all() -> None:
    lines = printed(casts_by_module(a_plan()))
    rows = {row[1]: row[2:] for row in lines if len(row) > 9}
    numbers = {name: [n for n in row if n.isdigit()] for name, row in rows.items()}
    assert numbers["body.0"] == ["1", "1", "1", "0", "1", "192"]
    assert numbers["odd[red]"] == ["1", "0", "0", "1", "0", "0"], "no markup is read"
    assert numbers["all"] == ["2", "1", "1", "1", "1", "192"]


def test_equal_modules_of_a_stack_share_a_row() -> None:
    softmax = 'softmax = softmax(%h) -> %p: f32[4,8]\n  | path="odd[red]"'
    more = 'linear1 = linear(%h, %w) -> %k: f32[4,8]\n  | path="body.1"\n'
    plan = plan_of(TEXT.replace(softmax, more + softmax))
    rows = [row[1] for row in printed(casts_by_module(plan)) if len(row) > 9]
    assert rows == ["module", "body.*", "odd[red]", "all"]


def test_there_is_one_row_for_each_decision() -> None:
    text = [" ".join(line) for line in printed(decision_table(a_plan()))]
    row = next(line for line in text if "│ softmax" in line)
    assert "deny" in row
    assert "float32" in row
    assert "model.py:3" in row


def test_the_table_of_a_plan_starts_with_its_summary() -> None:
    lines = [" ".join(line) for line in printed(plan_table(a_plan()))]
    assert lines[0].startswith("policy bf16, placement promote")
    assert any("casts by module" in line for line in lines)


def test_a_plan_without_ops_has_a_table() -> None:
    assert printed(plan_table(plan_of("return")))


def test_the_html_form_is_one_fragment_and_prints_nothing(capsys: Any) -> None:
    html = plan_html(a_plan())
    assert html.startswith("<pre>")
    assert "body.0" in html
    assert capsys.readouterr().out == ""
