"""Extension of mkdocstrings: roles in docstrings become code.

Docstrings name code as Sphinx does (``:func:`convert```), and mkdocs reads Markdown.
"""

import re
from typing import Any

from griffe import Docstring, Extension, Object

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?(?P<name>[^`]+)`")


def plain(text: str) -> str:
    """Return a docstring with its roles as code."""
    return ROLE.sub(r"`\g<name>`", text)


class Roles(Extension):
    """Extension that reads the docstrings of all objects, loaded by mkdocstrings."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Replace the roles in the docstring of an object, if it has one."""
        match obj.docstring:
            case Docstring() as found:
                found.value = plain(found.value)
            case None:
                pass
