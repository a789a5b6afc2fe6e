"""The lines of a summary: compounds, layers and the heaviest casts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from amprewrite.dtypes import is_float, short_name
from amprewrite.ir.text import COMMENT
from amprewrite.plan.compounds import Compound
from amprewrite.plan.fields import Lowering

if TYPE_CHECKING:
    from amprewrite.plan.model import Cast, Decision, Plan


# Precisions of ops that belong together, as a few words.


def makes_floats(decision: "Decision") -> bool:
    """Return whether an op makes real floats: truth values and indices have no say."""
    return any(map(is_float, decision.results or (decision.precision,)))


def precisions_text(plan: "Plan", decisions: Iterable["Decision"]) -> str:
    """Return ``full``, a dtype, or the number of ops in each: ``8 bf16, 2 f32``."""
    found = float_counts(decisions)
    if len(found) == 1:
        (dtype,) = found
        return "full" if plan.low and dtype == plan.full else short_name(dtype)
    return counts_text(plan, found)


def counts_text(plan: "Plan", found: Counter[str]) -> str:
    """Return the number of ops in each dtype, the low one first."""
    first = (plan.low, plan.full)
    order = sorted(found, key=lambda d: first.index(d) if d in first else len(first))
    return ", ".join(f"{found[dtype]:,} {short_name(dtype)}" for dtype in order)


def float_counts(decisions: Iterable["Decision"]) -> Counter[str]:
    """Return the number of ops that make floats by the dtype they compute in."""
    return Counter(d.precision for d in decisions if makes_floats(d))


def plural(count: int, noun: str) -> str:
    """Return ``1 op`` or ``7 ops``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    parts = [*names[:most], *more]
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


# Names of rows in which the repeated blocks of a stack stand together.

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

Rows = Mapping[str, tuple[str, str]]
"""The row of each module path, and the block or module that it counts as."""


def row_names(plan: "Plan") -> dict[str, str]:
    """Return the row of each module path, in program order.

    Numbers in a path become ``*``, so that the layers of a stack share their rows:
    ``layer.3.norm`` is in ``layer.*.norm``. Modules that end in a number share a row
    only if all of them run the same ops, as layers do and the parts of an
    ``nn.Sequential`` do not.
    """
    ops: dict[str, list[str]] = {}
    for decision in plan.decisions:
        ops.setdefault(decision.path, []).append(decision.canonical)
    for cast in plan.casts:
        ops.setdefault(cast.path, [])
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path, names in ops.items():
        kinds[_NUMBER.sub("*", path)].add(tuple(names))

    def row(path: str) -> str:
        starred = _NUMBER.sub("*", path)
        if not starred.endswith("*") or len(kinds[starred]) == 1:
            return starred
        front, dot, number = path.rpartition(".")
        return _NUMBER.sub("*", front) + dot + number

    return {path: row(path) for path in ops}


def layer_rows(plan: "Plan", below: int = 0) -> Rows:
    """Return the row of each module path, in program order, with blocks rolled up.

    All that is in the outermost blocks of a stack shares one row: ``layer.3.norm`` is
    in ``layer.*``. A block that is the only one of its stack keeps its number.

    Args:
        plan: The plan.
        below: Levels of modules inside of a block that have rows of their own: with 1,
            ``layer.3.attention.self`` is in ``layer.*.attention``. A module outside
            of a stack is rolled up to as many levels, with 0 it is not.
    """
    found: dict[str, tuple[str, str]] = {}
    for path, name in row_names(plan).items():
        parts = name.split(".")
        inside = parts.index("*") + 1 + below if "*" in parts else below or None
        block = ".".join(path.split(".")[:inside])
        found[path] = ".".join(parts[:inside]), block
    blocks = Counter(name for name, _ in set(found.values()))
    return {
        path: (name if blocks[name] > 1 else block, block)
        for path, (name, block) in found.items()
    }


# Records of the lowering of a program, as text of plans, reports and graphs.


def lowering_line(lowerings: Iterable[Lowering]) -> str:
    """Return a line with the number of ops of each kind; empty without a record."""
    kinds: dict[str, list[Lowering]] = {}
    for found in lowerings:
        kinds.setdefault(found.what, []).append(found)
    return "; ".join(_lowering_kind(what, found) for what, found in kinds.items())


def _lowering_kind(what: str, found: list[Lowering]) -> str:
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


MOST_COMPOUNDS = 5
"""Compounds with a line of their own; the rest share one."""

MOST_LAYERS = 4
"""Modules with a line of their own: those with the most ops."""

LEAST_OPS = 3
"""Least number of ops of a module outside of stacks that has a line."""

MOST_CASTS = 2
"""Kinds of casts that are named as the heaviest."""


def compound_lines(plan: "Plan") -> Iterator[str]:
    """Yield ``12 x softmax: full (7 ops each)`` for each kind of compound.

    Those with the most ops come first.
    """
    kinds: dict[str, list[Compound]] = defaultdict(list)
    for compound in plan.compounds:
        if any(map(makes_floats, compound.ops)):
            kinds[compound.name].append(compound)
    by_size = {n: sum(len(c.ops) for c in kind) for n, kind in kinds.items()}
    ranked = sorted(kinds, key=by_size.__getitem__, reverse=True)
    shown = ranked if len(ranked) <= MOST_COMPOUNDS + 1 else ranked[:MOST_COMPOUNDS]
    yield from (compound_line(plan, kinds[name]) for name in shown)
    rest = [calls for name, calls in kinds.items() if name not in shown]
    if texts := [f"{_head(calls)}: {_precisions(plan, calls)}" for calls in rest]:
        yield f"also {'; '.join(texts)}"


def compound_line(plan: "Plan", calls: Sequence[Compound]) -> str:
    """Return the line for the calls of one kind of compound."""
    sizes = {len(call.ops) for call in calls}
    ops = plural(sum(len(call.ops) for call in calls), "op")
    head = f"{_head(calls)}: {_precisions(plan, calls)}"
    if sizes == {1}:  # kernels
        return head
    if len(calls) > 1:
        each = f"{plural(sizes.pop(), 'op')} each"
        ops = f"{ops} in all" if sizes else each
    return f"{head} ({ops})"


def _head(calls: Sequence[Compound]) -> str:
    return _times(len(calls), calls[0].name)


def _precisions(plan: "Plan", calls: Sequence[Compound]) -> str:
    """Return the precisions of all that computes in some calls; moves do not."""
    each = [_computing(call.ops) for call in calls]
    texts = {precisions_text(plan, ops) for ops in each}
    if len(texts) == 1:
        return texts.pop()
    return precisions_text(plan, (op for ops in each for op in ops))


def _computing(ops: "Sequence[Decision]") -> "Sequence[Decision]":
    moves = ("follow", "keep")
    found = [d for d in ops if d.op_class not in moves and d.canonical != "cast"]
    return found or ops


def layer_lines(plan: "Plan") -> Iterator[str]:
    """Yield ``12 x layer.*.attention: 8 bf16, 2 f32, 3 casts`` for the largest modules.

    A module that stands alone has a line if it has several ops, and so have the modules
    inside of repeated blocks; where all of them are small, the block has the line. The
    ops of the model itself have none.
    """
    rows = _rows(plan)
    layers: dict[str, dict[str, list[Decision]]] = {}  # by row and by block
    for decision in plan.decisions:
        if decision.path and makes_floats(decision):
            row, block = rows[decision.path]
            layers.setdefault(row, {}).setdefault(block, []).append(decision)
    casts = Counter(rows[cast.path] for cast in plan.runtime_casts)
    sizes = {row: sum(map(len, blocks.values())) for row, blocks in layers.items()}
    able = [row for row in layers if len(layers[row]) > 1 or sizes[row] >= LEAST_OPS]
    shown = sorted(able, key=sizes.__getitem__, reverse=True)[:MOST_LAYERS]
    for row in able:
        if row in shown:
            yield _layer_line(plan, row, layers[row], casts)


def _rows(plan: "Plan") -> Rows:
    """Return the row and the block of each module path."""
    blocks, parts = layer_rows(plan), layer_rows(plan, below=1)
    sizes = Counter(parts[d.path] for d in plan.decisions if makes_floats(d))
    large = {blocks[path][0] for path in parts if sizes[parts[path]] >= LEAST_OPS}
    return {
        path: part if blocks[path][0] in large or "*" not in part[0] else blocks[path]
        for path, part in parts.items()
    }


def _layer_line(
    plan: "Plan",
    row: str,
    blocks: "Mapping[str, list[Decision]]",
    casts: Counter[tuple[str, str]],
) -> str:
    """Return the line of a row, whose ops and casts are given by block."""
    each = {
        _ops_and_casts(plan, ops, casts[row, block]) for block, ops in blocks.items()
    }
    head = _times(len(blocks), row)
    if len(each) == 1:
        return f"{head}: {each.pop()}"
    ops = [decision for found in blocks.values() for decision in found]
    count = sum(count for (name, _), count in casts.items() if name == row)
    return f"{head}: {_ops_and_casts(plan, ops, count)} in all"


def _ops_and_casts(plan: "Plan", ops: "Iterable[Decision]", casts: int) -> str:
    counts = counts_text(plan, float_counts(ops))
    return f"{counts}, {plural(casts, 'cast')}" if casts else counts


def cast_line(plan: "Plan") -> Iterator[str]:
    """Yield the line that names the casts that move the most bytes, if any do."""
    rows = row_names(plan)
    shared = Counter(rows.values())
    heavy: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for cast in plan.runtime_casts:
        if cast.bytes:
            row = rows[cast.path]
            kind = _kind(plan, cast, row if shared[row] > 1 else cast.path)
            heavy[kind] += cast.bytes
            count[kind] += 1
    if heavy:
        named = [
            f"{_times(count[kind], kind)} ({size:,} bytes)"
            for kind, size in heavy.most_common(MOST_CASTS)
        ]
        yield f"heaviest casts: {', '.join(named)}"


def _kind(plan: "Plan", cast: "Cast", row: str) -> str:
    """Return the key of equal casts: ``bf16 -> f32 for layer_norm at layer.*``."""
    reader = plan.by_op.get(cast.consumers[0])
    where = f" at {row}" if row and reader else ""
    dtypes = f"{short_name(cast.from_dtype)} -> {short_name(cast.to_dtype)}"
    return f"{dtypes} for {reader.canonical if reader else 'output'}{where}"


def _times(count: int, what: str) -> str:
    return f"{count:,} x {what}" if count > 1 else what
