"""Pairs of the tensors of two runs: those of a model before and after a change."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from amprewrite.unit_scaling.tracking.rows import ScaleRow
from amprewrite.unit_scaling.tracking.scales import Tracked, base_name
from amprewrite.unit_scaling.tracking.table import ScaleTable

CAPTURED = {"cross_entropy_loss": "cross_entropy"}
"""Functions of torch that have another name in a captured program."""


def alone(rows: Sequence[Tracked]) -> ScaleTable:
    """Return the table of one run."""
    return ScaleTable(("scales",), tuple(ScaleRow.of(row) for row in rows))


def paired(before: Sequence[Tracked], after: Sequence[Tracked]) -> ScaleTable:
    """Return the table of two runs.

    See :meth:`amprewrite.unit_scaling.tracking.Tracks.beside`.
    """
    old, new = without_factors(before), without_factors(after)
    keys = [[_key(row) for row in rows] for rows in (old, new)]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    rows: list[ScaleRow] = []
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            both = zip(old[i:i_end], new[j:j_end], strict=True)
            rows += [ScaleRow.of(*pair) for pair in both]
        else:
            rows += [ScaleRow.of(row, None) for row in old[i:i_end]]
            rows += [ScaleRow.of(None, row) for row in new[j:j_end]]
    return ScaleTable(("before", "after"), tuple(rows))


def without_factors(rows: Sequence[Tracked]) -> list[Tracked]:
    """Return the tensors without those that are another one times a factor.

    Where one product of a tensor has other values, the tensor gets their scales: what
    those see who read it. Its gradient is its own.
    """
    plain = {row.name: row for row in rows}
    products: dict[str, list[Tracked]] = {}
    for row in rows:
        if row.scaled and row.forward != plain[row.scaled].forward:
            products.setdefault(row.scaled, []).append(row)
    found: list[Tracked] = []
    for row in rows:
        if row.scaled is None:
            read = products.get(row.name, [])
            found.append(
                replace(row, forward=read[0].forward) if len(read) == 1 else row
            )
    return found


def _key(row: Tracked) -> Hashable:
    """Return the key that both tensors of a pair have."""
    if row.parameter:
        return row.name
    name = base_name(row.name)
    return CAPTURED.get(name, name), row.shape
