"""Hooks of mkdocs.yml: links out of the site, tabs by framework, diagrams.

Pages in docs/ are read on a code host too, where links to examples, measurements and
sources lead somewhere, and blocks for torch and for JAX stand one below the other. The
site holds docs/ alone, shows such blocks in tabs, and flowcharts as pictures.
"""

import re
import textwrap
from pathlib import Path

from mkdocs.structure.pages import Page

from tools.site_diagrams import drawn

LINK = re.compile(
    r"\[(?P<text>(?:[^\]\[]|\[[^\]]*\])+)\]\((?P<target>[^()\s#]+)(?:#[^()\s]*)?\)"
)
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
PAIR = re.compile(
    r"^In torch:\n\n(?P<torch>(?:^```\w+$.*?^```\n)+)\n"
    r"In JAX:\n\n(?P<jax>(?:^```\w+$.*?^```\n)+)",
    re.MULTILINE | re.DOTALL,
)
"""Blocks for torch, then blocks for JAX."""

SCHEME = re.compile(r"[a-z]+:")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the text of a page for the site.

    Args:
        markdown: The text of the page.
        page: The page, as mkdocs knows it: ``page.file.src_path`` is its file.
    """
    parts = CODE.split(drawn(markdown))
    folder = Path(page.file.src_path).parent
    return tabbed(
        "".join(
            part if part.startswith("```") else named(part, folder) for part in parts
        )
    )


def tabbed(markdown: str) -> str:
    """Return a text with the blocks for torch and for JAX in tabs."""

    def tabs(found: re.Match[str]) -> str:
        shown = {"torch": found["torch"], "JAX": found["jax"]}
        return "\n".join(
            f'=== "{title}"\n\n{textwrap.indent(blocks, " " * 4)}'
            for title, blocks in shown.items()
        )

    return PAIR.sub(tabs, markdown)


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
