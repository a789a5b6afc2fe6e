"""Writer of a page as one HTML file that loads nothing else."""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from amprewrite.errors import ArgumentError
from amprewrite.page.data import page_data, script_text
from amprewrite.page.model import Page

# Libraries inside a page: their files, versions and licences.
#
# ``assets/vendor`` holds them as the npm registry has them, and ``versions.json`` their
# versions and hashes; ``python -m tools.page_libraries`` writes both.


@dataclass(frozen=True, slots=True)
class Library:
    """One library of the registry.

    Attributes:
        name: Its name there.
        version: Its version.
        licence: SPDX name of its licence.
        files: SHA-256 of each file in ``assets/vendor``, in hexadecimal, by name. One
            ends with ``LICENSE.txt``, the others with ``.js`` and ``.css``.
    """

    name: str
    version: str
    licence: str
    files: dict[str, str]

    def scripts(self) -> list[str]:
        """Return the texts of its scripts."""
        return [vendored(name) for name in self.files if name.endswith(".js")]

    def styles(self) -> list[str]:
        """Return the texts of its style sheets."""
        return [vendored(name) for name in self.files if name.endswith(".css")]

    def licence_text(self) -> str:
        """Return the text of its licence."""
        found = (name for name in self.files if name.endswith("LICENSE.txt"))
        return vendored(next(found)).strip()


@cache
def libraries() -> tuple[Library, ...]:
    """Return the libraries in the order in which they are loaded."""
    return tuple(Library(**row) for row in json.loads(vendored("versions.json")))


def vendored(name: str) -> str:
    """Return the text of a file of ``assets/vendor``."""
    path = files("amprewrite.page") / "assets" / "vendor" / name
    return path.read_text("utf-8")


SCRIPTS = ("base", "details", "graph", "tables", "charts", "exponents", "main")
"""Names of the page's own scripts, in the order in which they run."""

_SOURCE_MAP = re.compile(r"(?m)^(?://|/\*)# sourceMappingURL=.*$\n?")
_CLOSES = re.compile(r"</(script|style)", re.IGNORECASE)


def write_page(page: Page, path: str | Path) -> None:
    """Write a page to ``path``.

    Raises:
        ArgumentError: The file cannot be written there.
    """
    try:
        Path(path).write_text(page_html(page), "utf-8")
    except OSError as error:
        msg = (
            f"{path}: the page cannot be written there ({error.strerror or error}); "
            f"want the path of a file in an existing folder"
        )
        raise ArgumentError(msg) from error


def page_html(page: Page) -> str:
    """Return a page as the text of one HTML file, UTF-8.

    Scripts, styles and the licences of the libraries are inside. Its content security
    policy lets no other script run and nothing be loaded.
    """
    found = libraries()
    licences = [
        {"name": lib.name, "version": lib.version, "licence": lib.licence, "text": text}
        for lib in found
        for text in [lib.licence_text()]
    ]
    data = {**page_data(page), "licences": licences}
    scripts = [text for lib in found for text in lib.scripts()]
    scripts.append("\n".join(_asset(f"{name}.js") for name in SCRIPTS))
    styles = [text for lib in found for text in lib.styles()]
    styles.append(_asset("page.css"))
    scripts = [_inline(text) for text in scripts]
    return Template(_asset("page.html")).substitute(
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in scripts),
        title=escape(page.title).encode("ascii", "xmlcharrefreplace").decode(),
        styles="\n".join(f"<style>{_inline(text)}</style>" for text in styles),
        data=script_text(data),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


@cache
def _asset(name: str) -> str:
    """Return the text of one of the page's own files."""
    return (files("amprewrite.page") / "assets" / name).read_text("utf-8")


def _inline(text: str) -> str:
    """Return a script or style without its source map, for use inside an element."""
    found = _CLOSES.search(text)
    assert found is None, f"an asset of the page holds {found and found[0]!r}"
    return _SOURCE_MAP.sub("", text)


@cache
def _digest(text: str) -> str:
    """Return the digest by which a content security policy allows a script."""
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
