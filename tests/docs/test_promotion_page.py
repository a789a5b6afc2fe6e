"""The page of differences is what its command writes."""

from pathlib import Path

from amprewrite.report.differences import COMMAND, differences_page

PAGE = Path(__file__).parents[2] / "docs" / "promotion.md"


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert text == differences_page(), f"run: {COMMAND} > docs/promotion.md"
