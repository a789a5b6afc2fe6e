import io
from dataclasses import replace

from rich.console import Console

from tests.unit.verify.test_report import OUTPUT, REPORT


def shown(report):
    written = io.StringIO()
    Console(file=written, width=160).print(report)
    return written.getvalue()


def test_the_tables_show_outputs_ops_and_gradients():
    text = shown(REPORT)
    for part in ("logits", "aten.mul", "model.py:3", "weight", "a note", "40"):
        assert part in text
    assert text.index("add ") < text.index("mul ")


def test_the_jitted_function_has_rows_of_its_own():
    assert "jitted" not in shown(REPORT)
    assert "logits, jitted" in shown(replace(REPORT, jitted=(OUTPUT,)))


def test_a_notebook_gets_html():
    html = REPORT._repr_html_()
    assert html.startswith("<pre>")
    assert "logits" in html
