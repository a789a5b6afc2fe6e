"""The page of a report: the worst ops, errors in all tables, the graph."""

import json
from dataclasses import replace
from typing import Any

from amprewrite.plan import Plan
from amprewrite.verify import Report
from amprewrite.verify.page import report_page
from amprewrite.verify.rows import OpError
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
exp = exp(%h) -> %e: f32[4,8]
return %e
"""


def op_error(name: str, precision: str, share: float | None, **more: Any) -> OpError:
    return OpError(
        name, name, f"aten.{name}", "body", "model.py:3", precision, 0.5, 0.25, 0,
        share=share, **more,
    )  # fmt: skip


def a_report(plan: Plan | None = None, share: float | None = 0.25) -> Report:
    rest = None if share is None else 1 - share
    ops = (op_error("linear", "bfloat16", share), op_error("exp", "float32", rest))
    return Report(
        "float64", "bfloat16", 0.25, 0.5, (), {"autocast": 1.0}, ops=ops, plan=plan
    )


def test_errors_stand_in_the_table_of_ops_and_in_the_graph() -> None:
    page = report_page(a_report(), plan_of(TEXT))
    heads = [column.title for column in page.tables[0].columns]
    assert heads[:5] == ["op", "computes", "share", "own error", "accumulated"]
    assert page.tables[0].rows[0][:5] == ("linear", "bfloat16", 0.25, 0.5, 0.25)
    assert page.graph is not None
    assert {n.name: n.share for n in page.graph.nodes if n.kind == "op"} == {
        "linear": 0.25,
        "exp": 0.75,
    }
    assert [row[0] for row in page.before[0].rows] == ["exp", "linear"], "worst first"
    assert [fact.label for fact in page.facts][:2] == [
        "error against float64",
        "error of autocast",
    ]


def test_a_report_alone_has_tables_and_no_graph() -> None:
    page = report_page(a_report(share=None))
    assert page.graph is None
    assert "share" not in [column.title for column in page.tables[0].columns]
    assert (page.verdict, page.tone) == ("ok: within the bound", "good")
    empty = report_page(replace(a_report(), ops=(), bound=None))
    assert (empty.before, empty.charts) == ((), ())
    assert "no bound known" in empty.verdict


def test_faults_and_problems_are_marked() -> None:
    fault = op_error("exp", "float32", 0.5, kernel=0.5, explained=0.1)
    report = replace(a_report(), ops=(fault,))
    page = report_page(report, plan_of(TEXT))
    assert (page.verdict, page.tone) == ("not ok", "bad")
    assert any("exp" in note for note in page.notes)
    assert page.graph is not None
    assert [node.name for node in page.graph.nodes if node.marked] == ["exp"]


def test_the_plan_of_a_report_is_drawn_and_not_saved(tmp_path) -> None:
    report = a_report(plan_of(TEXT))
    path = tmp_path / "report.html"
    report.to_html(path)
    data = json.loads(
        path.read_text("utf-8").split('id="data">')[1].split("</script>")[0]
    )
    assert [node[0] for node in data["graph"]["nodes"]][1] == "linear"
    assert "plan" not in report.to_json()
    saved = Report.from_json(report.to_json())
    assert saved == report
    assert saved.plan is None
