"""The page of words has every word that plans use, and none that nobody uses."""

import re

import pytest

from amprewrite.ir import REGION_BOUNDARIES
from amprewrite.passes import PLACEMENTS
from amprewrite.plan.fields import FOLDINGS
from amprewrite.policy import OpClass, Reason
from tests.docs.links import ROOT, pages

PAGE = ROOT / "docs" / "words.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+) \| (.+) \|$", re.MULTILINE)
HEADS = {"word", "class", "reason", "folding", "op"}


def section(title):
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", TEXT.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def words_of(text):
    """Return the words of the first column, in order; some rows have two."""
    rows = [word for word, _ in ROW.findall(text) if word not in HEADS]
    return [word.strip("` ") for row in rows for word in row.split(", ")]


def prose():
    """What the words are used in: the other pages, and the package."""
    files = [page for page in pages() if page != PAGE]
    files += (ROOT / "amprewrite").rglob("*.py")
    return "\n".join(file.read_text(encoding="utf-8").lower() for file in files)


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Classes", set(OpClass)),
        ("Reasons", set(Reason)),
        ("Folded casts", {*FOLDINGS} - {""}),
        ("Bodies", set(REGION_BOUNDARIES)),
    ],
)
def test_words_that_plans_hold_are_explained(title, words):
    found = words_of(section(title))
    assert len(found) == len(set(found))
    assert set(found) == words


def test_every_placement_and_target_is_named():
    text = section("Placement")
    assert all(f"`{name}`" in text for name in (*PLACEMENTS, "eager", "compiled"))


@pytest.mark.parametrize(
    "title",
    [
        *("Precision", "Plans", "Placement", "Programs", "Verification", "Training"),
        "In the code",
    ],
)
def test_words_are_sorted_and_have_a_meaning(title):
    rows = ROW.findall(section(title))[1:]
    assert [word for word, _ in rows] == sorted(word for word, _ in rows)
    assert all(len(meaning.split()) > 2 for _, meaning in rows)


def test_every_word_is_used():
    text = prose()
    assert not [word for word in words_of(TEXT) if word.lower() not in text]


def test_rows_are_read():
    text = "| word | meaning |\n|---|---|\n| full, low | two precisions |\n"
    assert words_of(text) == ["full", "low"]
