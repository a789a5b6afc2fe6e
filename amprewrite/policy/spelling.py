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


MOST = 200
"""Most unknown names of ops that are compared with known ones; each takes 1 ms."""


class Spelling:
    """Comparison of the names of ops in one file with the known ones.

    Attributes:
        left_out: Number of names that were not compared, after :data:`MOST`.
    """

    def __init__(self, known: Collection[str]) -> None:
        """Remember the known names."""
        self.known = frozenset(known)
        self.left_out = 0
        self._messages: dict[str, str] = {}

    def mistake(self, name: str) -> str:
        """Return the message of :func:`misspelt` about a name."""
        if name in self.known or name in self._messages:
            return self._messages.get(name, "")
        if len(self._messages) >= MOST:
            self.left_out += is_plain(name)
            return ""
        self._messages[name] = misspelt(name, self.known)
        return self._messages[name]

    @property
    def rest(self) -> str:
        """A message if names were left out, else empty."""
        if not self.left_out:
            return ""
        return (
            f"{self.left_out} more names of no known op; want at most {MOST}: a name "
            f"of your own is qualified, as mylib::cube"
        )


def is_plain(name: str) -> bool:
    """Return whether a name is neither qualified by a namespace, a glob, nor empty."""
    return bool(name) and set(".:*?[").isdisjoint(name)


def misspelt(name: str, known: Collection[str]) -> str:
    """Return a message if ``name`` is close to a known op; new names are allowed.

    A name qualified by a namespace, or a glob, is no spelling mistake, nor is the empty
    name: it is that of a rule which names no op.
    """
    if name in known or not is_plain(name):
        return ""
    hint = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
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
