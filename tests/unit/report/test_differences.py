"""The page of differences has every comparison, and its tables are well formed."""

import re

from amprewrite.report.promotion import COMMAND, differences_page


def test_every_comparison_says_how_many_pairs_differ():
    found = re.findall(r"### (.+)\n\n(\d+) of (\d+) pairs differ", differences_page())
    assert [(title, int(a), int(b)) for title, a, b in found] == [
        ("JAX, 64 bits against torch", 27, 120),
        ("JAX, 32 bits against torch", 13, 66),
        ("JAX, 64 bits against JAX, 32 bits", 3, 66),
        ("JAX, 64 bits against NumPy", 18, 105),
        ("torch against NumPy", 39, 105),
        ("JAX, 64 bits against torch", 54, 225),
        ("JAX, 32 bits against torch", 27, 121),
        ("NumPy against NumPy 1", 59, 196),
        ("JAX, 64 bits against torch against NumPy", 19, 42),
        ("JAX, 32 bits against torch", 2, 33),
        ("NumPy against NumPy 1", 21, 84),
    ]


def test_rows_have_as_many_cells_as_their_head():
    tables = re.findall(r"(?:^\|.*\|\n)+", differences_page(), flags=re.MULTILINE)
    assert len(tables) == 11
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_pairs_that_differ_alike_are_one_row():
    page = differences_page()
    assert "| f32 | f64 | u32, u64, i32, i64 + f32 |" in page
    assert "| f32 | f16 | f16 + 0-d bf16, f32 |" in page
    assert "| f16 | f32 | f16 + 32768, 65000.0 |" in page
    assert f"`{COMMAND} > docs/promotion.md`" in page
