"""The lines of a summary: compounds, layers and the heaviest casts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amprewrite.dtypes import short_name
from amprewrite.plan.overview.compounds import Compound
from amprewrite.plan.overview.layers import Rows, layer_rows, row_names
from amprewrite.plan.overview.precisions import (
    counts_text,
    float_counts,
    makes_floats,
    plural,
    precisions_text,
)

if TYPE_CHECKING:
    from amprewrite.plan.model import Cast, Decision, Plan

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


@dataclass
class _Layer:
    """The ops and casts of the modules that share a row.

    Attributes:
        blocks: Their ops by block.
        casts: Casts at run time by block.
    """

    blocks: "dict[str, list[Decision]]" = field(
        default_factory=dict[str, "list[Decision]"]
    )
    casts: Counter[str] = field(default_factory=Counter[str])


def layer_lines(plan: "Plan") -> Iterator[str]:
    """Yield ``12 x layer.*.attention: 8 bf16, 2 f32, 3 casts`` for the largest modules.

    A module that stands alone has a line if it has several ops, and so have the modules
    inside of repeated blocks; where all of them are small, the block has the line. The
    ops of the model itself have none.
    """
    rows = _rows(plan)
    layers: dict[str, _Layer] = {}
    for decision in plan.decisions:
        if decision.path and makes_floats(decision):
            row, block = rows[decision.path]
            layer = layers.setdefault(row, _Layer())
            layer.blocks.setdefault(block, []).append(decision)
    for cast in plan.runtime_casts:
        row, block = rows[cast.path]
        if row in layers:
            layers[row].casts[block] += 1
    sizes = {row: sum(map(len, one.blocks.values())) for row, one in layers.items()}
    able = [r for r in layers if len(layers[r].blocks) > 1 or sizes[r] >= LEAST_OPS]
    shown = sorted(able, key=sizes.__getitem__, reverse=True)[:MOST_LAYERS]
    for row in able:
        if row in shown:
            yield _layer_line(plan, row, layers[row])


def _rows(plan: "Plan") -> Rows:
    """Return the row and the block of each module path."""
    blocks, parts = layer_rows(plan), layer_rows(plan, below=1)
    sizes = Counter(parts[d.path] for d in plan.decisions if makes_floats(d))
    large = {blocks[path][0] for path in parts if sizes[parts[path]] >= LEAST_OPS}
    return {
        path: part if blocks[path][0] in large or "*" not in part[0] else blocks[path]
        for path, part in parts.items()
    }


def _layer_line(plan: "Plan", row: str, layer: _Layer) -> str:
    blocks = layer.blocks
    each = {
        block: _ops_and_casts(plan, ops, layer.casts[block])
        for block, ops in blocks.items()
    }
    head = _times(len(blocks), row)
    if len(set(each.values())) == 1:
        return f"{head}: {next(iter(each.values()))}"
    ops = [decision for found in blocks.values() for decision in found]
    return f"{head}: {_ops_and_casts(plan, ops, layer.casts.total())} in all"


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
