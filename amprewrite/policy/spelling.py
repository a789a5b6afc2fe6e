"""Spelling mistakes in names, and suggestions of the right name."""

from collections.abc import Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase

from amprewrite.ops import op_table

OWN_PRIMITIVE = "; a primitive of your own goes by native="
"""Advice if an apparent spelling mistake may be a name of the user's own."""


def near(word: str, words: tuple[str, ...]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest of ``words``, else nothing."""
    found = get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


def misspelt(name: str, known: Collection[str]) -> str:
    """Return a message if ``name`` is close to a known op; new names are allowed.

    A name qualified by a namespace, or a glob, is no spelling mistake, nor is the empty
    name: it is that of a rule which names no op.
    """
    if not name or name in known or not set(".:*?[").isdisjoint(name):
        return ""
    hint = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"unknown op {name!r} (did you mean {hint[0]!r}?)" if hint else ""


def unknown_group(glob: str | None) -> str:
    """Return a message if no group matches ``glob``, with the known groups.

    The groups are fixed: a line or rule for another one would match no op.
    """
    groups = tuple(op_table().groups) if glob else ()
    if not glob or any(fnmatchcase(group, glob) for group in groups):
        return ""
    want = ", ".join(sorted(groups))
    return f"unknown group {glob!r}; want one of {want}{near(glob, groups)}"
