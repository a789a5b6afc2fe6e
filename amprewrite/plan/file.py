"""The JSON file of a plan: written, and read as plain data."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amprewrite.errors import PlanMismatchError
from amprewrite.policy.load import read_text

FORMAT = 2
"""Version of the JSON form."""

ADDED: Mapping[str, frozenset[str]] = {
    "Decision": frozenset(("forward", "backward", "scaling", "kernel", "calls")),
    "Plan": frozenset(("target", "recompute", "gradient_error", "timed", "lowerings")),
    "Rule": frozenset(("group",)),
}
"""Fields by class that files of this format may lack: they were added to it later.

The default of each describes every plan from before the field: no 8-bit formats, no
recomputed regions, gradients that were not predicted, nothing timed, no record of a
lowering. A field without such a default needs another format number.
"""

MAX_BYTES = 512 * 2**20
"""Largest size of a file: a plan of 100,000 ops has about 100 MB."""

MAX_DEPTH = 16
"""Deepest nesting of lists and tables in a file; a plan needs 5."""

MAX_MISTAKES = 20
"""Largest number of mistakes that a message lists."""

WANT = "a file written by Plan.save"


def save_table(table: Mapping[str, Any], path: str | Path) -> None:
    """Write ``table`` as JSON to ``path``.

    Raises:
        PlanMismatchError: It cannot be written there.
    """
    text = json.dumps({"format": FORMAT, **table}, indent=1) + "\n"
    try:
        Path(path).write_text(text, "utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"{path!s}: cannot be written ({reason}); want the path of a file"
        raise PlanMismatchError(msg) from error


def load_table(path: str | Path) -> object:
    """Return the data in the JSON file at ``path``.

    Raises:
        PlanMismatchError: It cannot be read, or holds no JSON.
    """

    def refuse(reason: str) -> PlanMismatchError:
        return PlanMismatchError(f"{path!s}: {reason}")

    text = read_text(Path(path), MAX_BYTES, WANT, refuse)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise refuse(f"is nested deeper than {MAX_DEPTH}; want {WANT}") from error
    except ValueError as error:
        raise refuse(f"is no JSON; want {WANT} ({error})") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; refuse one in which a key occurs twice."""
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} occurs twice in an object")
    return table


def mistakes_head(mistakes: list[str]) -> str:
    """Return ``2 mistakes``, after shortening a long list in place."""
    count = len(mistakes)
    if count > MAX_MISTAKES:
        mistakes[MAX_MISTAKES:] = [f"and {count - MAX_MISTAKES:,} more"]
    return f"{count:,} mistake{'s' * (count > 1)}"
