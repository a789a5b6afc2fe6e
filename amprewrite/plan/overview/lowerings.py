"""Records of the lowering of a program, as text of plans, reports and graphs."""

from collections.abc import Iterable, Iterator

from amprewrite.ir.text import COMMENT
from amprewrite.plan.fields import Lowering
from amprewrite.plan.overview.precisions import plural


def lowering_line(lowerings: Iterable[Lowering]) -> str:
    """Return a line with the number of ops of each kind; empty without a record."""
    kinds: dict[str, list[Lowering]] = {}
    for found in lowerings:
        kinds.setdefault(found.what, []).append(found)
    return "; ".join(_kind(what, found) for what, found in kinds.items())


def _kind(what: str, found: list[Lowering]) -> str:
    """Return ``2 ops removed``, and the bytes that are kept for it."""
    count = plural(len(dict.fromkeys(op for one in found for op in one.ops)), "op")
    size = sum(one.bytes for one in found)
    return f"{count} {what}" + (f" ({size:,} bytes)" if size else "")


def lowering_comments(lowerings: Iterable[Lowering]) -> str:
    """Return a comment for each lowering, to follow the text of a graph."""
    return "".join(f"{COMMENT}{text}\n" for text in lowering_texts(lowerings))


def lowering_texts(lowerings: Iterable[Lowering]) -> Iterator[str]:
    """Yield ``no_ops: dropout removed`` for each lowering."""
    for found in lowerings:
        kept = f", {found.bytes:,} bytes" if found.bytes else ""
        yield f"{found.name}: {', '.join(found.ops)} {found.what}{kept}"
