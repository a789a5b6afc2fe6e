"""The index page of a folder has a line for each file, which says what is in it."""

import re

import pytest

from tests.docs.links import ROOT, links_of

FOLDERS = ("docs", "examples", "benchmarks")
MIN_WORDS = 3
LINE = re.compile(r"^- \[[^\]]+\]\(([^)]+)\): (.+)$", re.MULTILINE)


def files_of(folder):
    """Files of a folder, as its index page links to them."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - {"README.md"}


def listed(text):
    """What the lines of an index page are about, and how they say it."""
    return LINE.findall(text)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_file_is_listed_once(name):
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    inside = [link for link in links_of(text) if not link.startswith("..")]
    assert sorted(inside) == sorted(files_of(ROOT / name))


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
