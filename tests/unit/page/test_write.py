"""The HTML file of a page: whole, alone, and safe for any text."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from amprewrite.errors import ArgumentError
from amprewrite.page.data import script_text
from amprewrite.page.model import Column, Graph, Node, Page, Table
from amprewrite.page.write import page_html, write_page

HOSTILE = "</script><script>alert(1)</script><!-- ]]> \u2028 \ud800 & 'q' \"q\""


class Elements(HTMLParser):
    """The elements of a page, the texts of its scripts, its policy."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag == "script"
        self.scripts += [""] * self.inside

    def handle_endtag(self, tag):  # noqa: ARG002  # its signature
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data

    @property
    def policy(self) -> str:
        metas = [a for tag, a in self.found if tag == "meta" and "http-equiv" in a]
        return metas[0]["content"] or ""


def a_page(text: str = "x") -> Page:
    table = Table(text, (Column(text),), ((text,),), text)
    node = Node(text, text, "float32", text)
    return Page(text, text, notes=(text,), graph=Graph((node,)), tables=(table,))


def test_a_page_loads_nothing() -> None:
    text = page_html(a_page())
    elements = Elements(text)
    assert not [
        t for t, _ in elements.found if t in ("link", "img", "iframe", "object")
    ]
    assert not [a for _, a in elements.found if "src" in a]
    assert not [
        a for t, a in elements.found if not (a.get("href") or "#").startswith("#")
    ]
    assert "default-src 'none'" in elements.policy
    assert not re.search(r"sourceMappingURL|@import|cdn\.|unpkg|jsdelivr", text)


def test_only_its_own_scripts_may_run() -> None:
    elements = Elements(page_html(a_page()))
    data, *scripts = elements.scripts
    assert json.loads(data)["title"] == "x"
    hashes = {b64encode(sha256(s.encode()).digest()).decode() for s in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", elements.policy)) == hashes
    assert len(hashes) == 5


def test_no_text_breaks_out() -> None:
    text = page_html(a_page(HOSTILE))
    plain, hostile = Elements(page_html(a_page())), Elements(text)
    assert [t for t, _ in hostile.found] == [t for t, _ in plain.found]
    data = json.loads(hostile.scripts[0])
    assert data["tables"][0]["rows"] == [[HOSTILE]]
    assert data["graph"]["nodes"][0][0] == HOSTILE
    assert not set("<>&") & set(hostile.scripts[0])
    assert hostile.scripts[0].isascii()
    assert text.encode(), "a lone surrogate has no form in UTF-8"


def test_numbers_that_are_not_finite_are_texts() -> None:
    found = script_text({"a": [float("inf"), (float("-inf"), float("nan")), 0.1]})
    assert json.loads(found) == {"a": ["inf", ["-inf", "nan"], 0.1]}


def test_the_page_is_small_without_data() -> None:
    assert len(page_html(Page("x")).encode()) < 1_200_000


def test_a_file_that_cannot_be_written_is_named(tmp_path) -> None:
    path = tmp_path / "page.html"
    write_page(a_page("ü"), path)
    assert "<title>&#252;</title>" in path.read_text("utf-8")
    with pytest.raises(ArgumentError, match="existing folder"):
        write_page(a_page(), tmp_path / "missing" / "page.html")
