"""Module paths are broken at their dots."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from amprewrite.report.modules import DottedName

NAME = DottedName("encoder.layer.*.attention.output", " x12")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["encoder.layer.*.attention.output x12"]),
        (30, ["encoder.layer.*.attention.", "  output x12"]),
        (20, ["encoder.layer.*.", "  attention.", "  output x12"]),
        (1, ["encoder.", "  layer.", "  *.", "  attention.", "  output x12"]),
    ],
)
def test_lines_end_at_dots(width, lines):
    assert NAME.lines(width) == lines


def test_a_column_is_as_wide_as_the_longest_part_at_least():
    table = Table("module", "n")
    table.add_row(NAME, "1")
    console = Console(file=io.StringIO(), width=10, record=True)
    console.print(table)
    assert max(map(len, console.export_text().splitlines())) <= 10
    measured = console.measure(NAME, options=console.options.update(max_width=80))
    assert (measured.minimum, measured.maximum) == (12, len(NAME.name) + 4)
