"""Libraries inside a page: their files, versions and licences.

``assets/vendor`` holds them as the npm registry has them, and ``versions.json`` their
versions and hashes; ``python -m tools.page_libraries`` writes both.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


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
