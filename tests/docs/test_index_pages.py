"""Each line of an index page says what is in a file; house rules count the files."""

import re

import pytest

from tests.docs.links import ROOT

FOLDERS = ("docs", "examples", "benchmarks")
MIN_WORDS = 3
LINE = re.compile(r"^- \[[^\]]+\]\(([^)]+)\): (.+)$", re.MULTILINE)


def listed(text):
    """What the lines of an index page are about, and how they say it."""
    return LINE.findall(text)


@pytest.mark.parametrize("name", FOLDERS)
def test_each_line_says_what_is_in_the_file(name):
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    lines = listed(text)
    assert len(lines) == text.count("\n- ")
    assert not [file for file, words in lines if len(words.split()) < MIN_WORDS]


def test_lines_are_read():
    assert listed("- [a.py](a.py): what it does.\n- no link\n") == [
        ("a.py", "what it does.")
    ]
