"""The reason why a rule matched no op, with the nearest names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import accumulate

from amprewrite.ir import Op
from amprewrite.policy.model import Rule, key_matches, key_values

NEAREST = 3
"""Number of names that are suggested."""

NAMES = {
    "path": "module path",
    "group": "group",
    "op": "op",
    "native": "native name",
    "op_name": "op name",
    "source": "source line",
}
"""Names of the keys of a rule in messages."""


def why_unused(rule: Rule, ops: Sequence[Op]) -> str:
    """Return the reason why ``rule`` decided no op, as the end of a sentence.

    Args:
        rule: A rule that decided no op.
        ops: Ops of the program.
    """
    if any(rule.matches(op) for op in ops):
        return "; overrides or rules before it decide about all ops that it matches"
    for key, glob in rule.keys.items():
        if not any(key_matches(key, glob, op) for op in ops):
            return _nearest(key, glob, ops)
    return "; none has all of these keys" if ops else ""


def _nearest(key: str, glob: str, ops: Sequence[Op]) -> str:
    names = sorted({name for op in ops for name in _names(key, op) if name})
    if not names:
        return f"; no op of this program has a {NAMES[key]}" if ops else ""
    near = get_close_matches(glob, names, n=NEAREST, cutoff=0.5)
    head = "nearest" if near else "there are"
    more = "" if near or len(names) <= NEAREST else ", ..."
    found = ", ".join(map(repr, near or names[:NEAREST]))
    return f"; no {NAMES[key]} is {glob!r}, {head} {found}{more}"


def _names(key: str, op: Op) -> Iterable[str]:
    """Return the names of ``op`` for a key: for paths, also the modules around it."""
    if key == "path":
        return accumulate(op.path.split("."), "{}.{}".format)
    return (op.canonical,) if key == "op" else key_values(key, op)
