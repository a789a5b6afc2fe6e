"""Links of the documentation lead somewhere, and so do pages that code names."""

import re

import pytest

from tests.docs.links import ROOT, anchors_of, broken_links, links_of, pages

PAGE = re.compile(r"\b(?:docs|examples|benchmarks)/[\w/]*\w\.(?:md|py|json|toml)\b")
"""A file of these folders, as code and pages name it outside of links."""

FOLDERS = ("amprewrite", "benchmarks", "docs", "examples", "policies", "tests")
SUFFIXES = {".json", ".md", ".py", ".toml"}


def short(path):
    return path.relative_to(ROOT).as_posix()


def unknown_files(text):
    """Files that a text names and that are not there."""
    return {name for name in PAGE.findall(text) if not (ROOT / name).exists()}


@pytest.mark.parametrize("path", pages(), ids=short)
def test_links_resolve(path):
    assert not broken_links(path)


def test_files_that_are_named_exist():
    inside = [f for folder in FOLDERS for f in (ROOT / folder).rglob("*")]
    files = [f for f in (*inside, *ROOT.iterdir()) if f.suffix in SUFFIXES]
    found = {
        short(file): names
        for file in files
        if file.name != "test_links.py"
        and (names := unknown_files(file.read_text(encoding="utf-8")))
    }
    assert not found


def test_broken_links_are_found(tmp_path):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# The `cut`, again\n## Twice\n## Twice\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#the-cut-again) [c](#here)\n"
        "[d](other.md#twice-1) [e](https://example.org) `[f](nowhere.md)`\n"
    )
    assert not broken_links(page)
    page.write_text("[a](none.md) [b](other.md#cut) [c](#there) [d](other.md#twice-2)")
    assert broken_links(page) == links_of(page.read_text())
    assert unknown_files("see docs/none.md and docs/jax.md") == {"docs/none.md"}


def test_anchors_are_those_of_github():
    text = "# A_b: c-d (e)\n```python\n# no heading\n```\n## [x](y.md) `z.w`\n"
    assert anchors_of(text) == ["a_b-c-d-e", "x-zw"]
