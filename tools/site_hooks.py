"""Hooks of mkdocs.yml: links to files outside of the site become names of files.

Pages in docs/ are read on a code host too, where links to examples, measurements and
sources lead somewhere. The site holds docs/ alone.
"""

import re
from pathlib import Path

from mkdocs.structure.pages import Page

LINK = re.compile(
    r"\[(?P<text>(?:[^\]\[]|\[[^\]]*\])+)\]\((?P<target>[^()\s#]+)(?:#[^()\s]*)?\)"
)
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
SCHEME = re.compile(r"[a-z]+:")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the text of a page with the links out of docs/ as text.

    Args:
        markdown: The text of the page.
        page: The page, as mkdocs knows it: ``page.file.src_path`` is its file.
    """
    parts = CODE.split(markdown)
    folder = Path(page.file.src_path).parent
    return "".join(
        part if part.startswith("```") else named(part, folder) for part in parts
    )


def named(text: str, folder: Path) -> str:
    """Return ``text`` with each link to a file outside of docs/ as its path.

    Args:
        text: Markdown without fenced blocks.
        folder: The folder of the page, relative to docs/.
    """

    def replace(found: re.Match[str]) -> str:
        target = found["target"]
        if SCHEME.match(target) or not (path := outside(folder, target)):
            return found[0]
        shown = found["text"].strip("`")
        same = shown.rstrip("/") in (path, Path(path).name)
        return f"`{path}`" if same else f"{found['text']} (`{path}`)"

    return LINK.sub(replace, text)


def outside(folder: Path, target: str) -> str:
    """Return a link's path from the root of the project; empty for one in docs/."""
    parts = ["docs", *folder.parts]
    for part in Path(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "" if parts[:1] == ["docs"] else "/".join(parts)
