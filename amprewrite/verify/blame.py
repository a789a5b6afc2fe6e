"""Blame: the ops that cause the error of the outputs, ranked by measured effect.

The first runs restore single ops: the one with the largest predicted share, the one
with the largest error of its own beside the roundoff of its formats, and the one with
the largest jump of the accumulated error. If these do not explain the error, groups of
ops are restored: the half that removes more is halved again, down to one op. So there
are at most ``log2(n) + 3`` runs for ``n`` ops.

Where outputs are not finite, ops are kept full so that no value leaves the range of the
format that stores it. The largest magnitude of every value is known from the reference,
and the formats in which ops read and make it from the plan. So such an op is found
although the values that reach it in the converted program are not finite already.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil, inf, isfinite, isinf, log2
from typing import TYPE_CHECKING, Any, overload

from amprewrite.dtypes import FORMATS, itemsize
from amprewrite.errors import UnsupportedError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.page.data import plain
from amprewrite.plan import Plan
from amprewrite.policy import OpClass
from amprewrite.verify.rows import OpError, OpRow, op_fields, worst

if TYPE_CHECKING:  # they load numpy, and a report is loaded with the package
    from amprewrite.frameworks.base import Stepper
    from amprewrite.measure.runs import Ablation, Call, Run
    from amprewrite.plan.sensitivity import Sensitivity


@dataclass(frozen=True)
class Live:
    """The models behind a report, so that their ops can be restored.

    Attributes:
        framework: The framework of both.
        original: The model.
        converted: Its converted form.
        call: The arguments.
        reference: Outputs of the original in the reference's dtype.
        sensitivity: Sensitivity of the outputs to each rounding; None if unknown.
    """

    framework: "Stepper"
    original: object
    converted: object
    call: "Call"
    reference: "Run"
    sensitivity: "Sensitivity | None" = None

    @cached_property
    def ablation(self) -> "Ablation":
        """The converted program with ops that can be restored, captured once.

        Raises:
            UnsupportedError: There is none; the message says why.
        """
        from amprewrite.measure.runs import Call  # noqa: PLC0415  # it loads numpy

        call = Call(self.call.args, self.call.kwargs)
        found = self.framework.ablation(self.original, self.converted, call)
        if isinstance(found, str):
            msg = (
                f"no op can be restored: {found}; verify a model that was converted "
                f"with args=, so that it is one graph with a plan"
            )
            raise UnsupportedError(msg)
        return found

    @property
    def squares(self) -> Mapping[str, float]:
        """Predicted part of each op in the squared error of the outputs."""
        if self.sensitivity is None:
            return {}
        return self.sensitivity.by_op(self.ablation.plan, self.ablation.graph)


@dataclass(frozen=True, slots=True)
class Left:
    """The error of the outputs that is left in one run.

    Attributes:
        error: Relative L2 error of all float outputs together.
        lost: Number of elements that are not finite and are in the reference.
    """

    error: float
    lost: int = 0

    def removed(self, left: "Left") -> float:
        """Return the share of this error that is gone in ``left``.

        It is a share of the squared error; of elements that are not finite if there are
        any. It is negative where the error has grown.
        """
        if self.lost:
            return (self.lost - left.lost) / self.lost
        if not isfinite(left.error):
            return -inf
        return 1.0 - (left.error / self.error) ** 2 if self.error else 0.0


@dataclass
class Effects:
    """Measurements of one converted program with ops restored.

    Attributes:
        live: The models.
        base: The error with no op restored.
        runs: Number of runs until now.
    """

    live: Live
    base: Left
    runs: int = 0
    _known: dict[frozenset[str], Left] = field(
        default_factory=dict[frozenset[str], Left]
    )

    def left(self, restored: Collection[str]) -> Left:
        """Return the error with some ops restored; a set is run once."""
        from amprewrite.verify.metrics import joint_error, lost_elements  # noqa: PLC0415  # numpy

        key = frozenset(restored)
        if not key:
            return self.base
        if key not in self._known:
            self.runs += 1
            wanted = self.live.reference.outputs
            found = self.live.ablation.run(key).outputs
            pairs = [(found[name], array) for name, array in wanted.items()]
            lost = sum(lost_elements(one, exact) for one, exact in pairs)
            self._known[key] = Left(joint_error(pairs), lost)
        return self._known[key]

    def removed(self, restored: Collection[str]) -> float:
        """Return the share of the error that restoring ops removes."""
        return self.base.removed(self.left(restored))

    def measured(self, op: str) -> float | None:
        """Return the error with one op restored, if that was run."""
        known = self._known.get(frozenset({op}))
        return None if known is None else known.error


def overflowing(
    rows: Sequence[OpError], plan: Plan, graph: ProgramGraph
) -> Mapping[str, str]:
    """Return the ops that make values that are not finite, with the way, in order.

    They make a value beyond the format of it, read one beyond the format of that, or
    make others for no reason of range. An op that runs in full, or moves values, has
    them full once the ops that make them are, and is none of these. An inserted cast
    that overflows, or a stored weight, counts as its readers, if they are known.

    Args:
        rows: Errors of each op, with ranges, in program order.
        plan: The plan of the converted program.
        graph: The program.
    """
    by_op = {row.op: row for row in rows}
    handed = dict[str, str]()
    for row in rows:
        if row.overflows:
            handed.update(dict.fromkeys(_readers(row, by_op), _hands(row)))
    found = {row.op: _makes(row) for row in rows if row.overflows and not row.readers}
    sizes = _Sizes(by_op, plan, graph)
    for op in graph.ops:
        row, decision = by_op.get(op.name), plan.by_op[op.name]
        if row is None or decision.op_class == OpClass.FOLLOW:
            continue
        if not row.nonfinite and not isinf(row.own):
            continue
        reads = handed.get(op.name) or sizes.read_beyond(op)
        if decision.precision == plan.low:
            beyond = row.headroom is not None and row.headroom < 0.0
            way = "" if beyond else reads
            if way or beyond or isinf(row.own):
                found[op.name] = way or _makes(row)
        elif isinf(row.own) and not reads:
            found[op.name] = _makes(row)
    return found


class _Sizes:
    """The largest magnitude of each value, and the formats that it passes.

    Args:
        by_op: Rows of the report.
        plan: The plan of the converted program.
        graph: The program.
    """

    def __init__(
        self, by_op: Mapping[str, OpError], plan: Plan, graph: ProgramGraph
    ) -> None:
        self.decisions = plan.by_op
        self.largest: dict[str, float] = {}
        self.stored: dict[str, str] = {}
        for op in graph.ops:
            row = by_op.get(op.name)
            if row is not None:
                dtypes = plan.by_op[op.name].results
                self.largest.update(dict.fromkeys(op.results, row.largest))
                self.stored.update(zip(op.results, dtypes, strict=False))

    def read_beyond(self, op: Op) -> str:
        """Return the way in which an op reads a value beyond a format; empty if not.

        The format is that in which it is stored, or read. Casts of masks saturate.
        """
        dtypes = self.decisions[op.name].operands
        for index, (name, read) in enumerate(zip(op.operands, dtypes, strict=False)):
            size = self.largest.get(name, 0.0)
            for dtype in (self.stored.get(name, ""), read):
                beyond = dtype in FORMATS and size > FORMATS[dtype].max
                if beyond and index not in op.masks:
                    return (
                        f"reads %{name}, of which the largest is {size:.3g}, in {dtype}"
                    )
        return ""


def _makes(row: OpError) -> str:
    room = "" if row.headroom is None else f", {row.headroom:+.1f} octaves left"
    return (
        f"makes {row.nonfinite} values that are not finite: its largest is "
        f"{row.largest:.3g}{room} in {row.dtype or row.precision}"
    )


def _hands(row: OpError) -> str:
    return (
        f"reads {row.nonfinite} values that are not finite: the largest is "
        f"{row.largest:.3g}, and it reads them in {row.dtype} ({row.op})"
    )


def _readers(row: OpError, by_op: Mapping[str, OpError]) -> Iterator[str]:
    """Yield the ops that read an inserted node, directly or by others."""
    for name in row.readers:
        reader = by_op.get(name)
        if reader is not None and reader.inserted:
            yield from _readers(reader, by_op)
        else:
            yield name


FIRST = 3
"""Number of single ops that are restored before groups are."""

EXPLAINED = 0.5
"""Share of the error by single ops above which no groups are tried."""

UNEXPECTED = 1.5
"""Multiple of the predicted error beyond which something else than rounding acts."""

SURPRISE = 2.0
"""Own error, in unit roundoffs of the op's formats, above which it may be a fault.

Rounding two operands and a result once each gives 0.7 of them.
"""

BEYOND = 4.0
"""Multiple of the predicted part of an op, above which its effect is no rounding."""

FILE = "the report was read from data: shares are predicted, no op was restored"
"""Note of a blame without the models."""


@dataclass(frozen=True, slots=True)
class Blamed(OpRow):
    """One op that causes error of the outputs; an inserted cast by its sample's name.

    Attributes:
        share: Share of the squared error of the outputs that restoring it removes; of
            their elements that are not finite, if there are any. Negative if its error
            cancels others. None if unknown.
        predicted: The share that its roundings have by first-order prediction; None if
            unknown.
        error: Error of the outputs with this op alone restored; None if that was not
            run, so that ``share`` is the predicted one or follows from groups.
        bytes: Additional bytes that it reads and writes in full precision.
        seconds: Additional time in full precision on these arguments, of one run;
            negative if it is faster. None if not measured.
        fault: How it differs from the op that it stands for, beyond rounding; empty if
            it does not.
    """

    share: float | None
    predicted: float | None = None
    error: float | None = None
    bytes: int = 0
    seconds: float | None = None
    fault: str = ""

    def __str__(self) -> str:
        """Return one line: the op, its share, its price, its place, its fault."""
        share = "unknown share" if self.share is None else f"{self.share:.0%}"
        how = "predicted" if self.error is None else f"error {self.error:.3g} without"
        price = f", {self.bytes:,} more bytes in full" if self.bytes else ""
        if self.seconds is not None:
            price += f", {self.seconds * 1e6:+,.0f} µs"
        fault = f"; {self.fault}" if self.fault else ""
        head = f"{self.op} ({self.native}, {self.precision})"
        return f"{head} {share} of the error ({how}{price}){self.place}{fault}"


@dataclass(frozen=True)
class Blame(Sequence[Blamed]):
    """The ops that cause the error of the outputs, the worst first.

    Attributes:
        entries: The ops. Faults come first.
        error: Error of the outputs as converted.
        runs: Number of runs with ops restored; 0 if nothing was measured.
        ops: Number of ops that could be restored.
        notes: Notes for the user.
    """

    entries: tuple[Blamed, ...]
    error: float
    runs: int = 0
    ops: int = 0
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether ops were restored; otherwise shares are predicted."""
        return self.runs > 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> Blamed: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Blamed, ...]: ...
    def __getitem__(self, index: int | slice) -> Blamed | tuple[Blamed, ...]:
        """Return one entry, or several."""
        return self.entries[index]

    def __str__(self) -> str:
        """Return a line for the whole, and one for each op."""
        how = f"{self.runs} runs, {self.ops} ops" if self.runs else "predicted"
        head = f"error {self.error:.3g}; restoring ops one by one ({how}):"
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([head, *(f"  {entry}" for entry in self), *notes])

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; numbers that are not finite become text."""
        return plain({**asdict(self), "measured": self.measured})


def blame(
    rows: Sequence[OpError],
    error: float,
    predicted: float | None,
    effects: Effects | None,
    top: int = 5,
) -> Blame:
    """Return the ops that cause the error of the outputs.

    Args:
        rows: Errors of each op, in program order.
        error: Error of the outputs.
        predicted: First-order prediction of it; None if unknown.
        effects: Runs with ops restored; None to go by the rows alone.
        top: Number of entries.
    """
    if effects is None:
        ranked = (_recorded(row, error, predicted) for row in worst(rows, top))
        return Blame(tuple(ranked), error, notes=(FILE,))
    return _Search(rows, effects, predicted).blame(top)


def limit(count: int) -> int:
    """Return the largest number of runs for ``count`` ops."""
    return ceil(log2(max(count, 2))) + FIRST


class _Search:
    """Search for the culprits among the ops of one program."""

    def __init__(
        self, rows: Sequence[OpError], effects: Effects, predicted: float | None
    ) -> None:
        self.rows = {row.op: row for row in rows}
        self.effects, self.predicted = effects, predicted
        ablation = effects.live.ablation
        self.plan, self.graph = ablation.plan, ablation.graph
        free = ablation.restorable
        self.free = [r for r in rows if r.op in free or r.inserted]
        self.squares = effects.live.squares
        self.limit = limit(len(self.free))
        self.beyond: Mapping[str, str] = {}
        if effects.base.lost:
            self.beyond = overflowing(rows, self.plan, self.graph)
        self.shares: dict[str, float] = {}

    def blame(self, top: int) -> Blame:
        """Restore ops until the error is explained, and return the worst ones."""
        together: list[str] = []
        if self.effects.base.lost:
            together = self._overflow()
        else:
            self._singly(self._suspects())
            if not self._is_explained():
                self._halve()
        if not together:
            rest = (row.op for row in self._by_prediction()[:top])
            self._singly(op for op in rest if self._part(op) > 0.0)
        entries = sorted(map(self._entry, self.rows.values()), key=_rank)
        notes = (self._together(together),) if len(together) > 1 else ()
        found = self.effects
        return Blame(
            tuple(entries[:top]), found.base.error, found.runs, len(self.free), notes
        )

    def _suspects(self) -> list[str]:
        """Return the first ops to restore, by prediction, own error and jump."""
        known = [row for row in self.free if isfinite(row.own)]
        ranked = self._by_prediction()
        first = [
            *worst(self.free, 1),
            *sorted(known, key=lambda row: -row.surprise)[:1],
            *sorted(known, key=lambda row: -row.jump)[:1],
            *ranked,
        ]
        return list(dict.fromkeys(row.op for row in first))[:FIRST]

    def _by_prediction(self) -> list[OpError]:
        return sorted(self.free, key=lambda row: -self._part(row.op))

    def _part(self, op: str) -> float:
        """Return the predicted part of an op in the squared error."""
        return self.squares.get(op, 0.0)

    def _singly(self, ops: Iterable[str]) -> None:
        """Restore single ops, as long as there are runs."""
        for op in ops:
            if op in self.shares or self.effects.runs >= self.limit:
                continue
            self.shares[op] = self.effects.removed({op})

    def _is_explained(self) -> bool:
        """Return whether single ops, or roundings as predicted, explain the error."""
        base, known = self.effects.base, self.predicted
        if sum(max(0.0, share) for share in self.shares.values()) >= EXPLAINED:
            return True
        if any(self._fault(op) for op in self.shares):
            return True
        return known is not None and base.error <= UNEXPECTED * known

    def _halve(self) -> None:
        """Halve the other ops until one is left, the half that removes more."""
        pool = [row.op for row in self.free if row.op not in self.shares]
        whole = 1.0
        while len(pool) > 1 and self.effects.runs < self.limit:
            half, rest = pool[: len(pool) // 2], pool[len(pool) // 2 :]
            share = self.effects.removed(half)
            pool, whole = (half, share) if 2 * share >= whole else (rest, whole - share)
        if len(pool) == 1:
            self.shares.setdefault(pool[0], whole)

    def _overflow(self) -> list[str]:
        """Restore the ops that make values that are not finite, or find them.

        Returns:
            Ops that have to be restored together.
        """
        free = {row.op for row in self.free}
        made = [op for op in self.beyond if op in free]
        for op in made[:1]:
            self._singly([op])
            if self.shares[op] == 1.0:
                return []
        if len(made) > 1:
            share = self.effects.removed(made)
            if share > 0.0:
                self.shares.update(dict.fromkeys(made, share / len(made)))
                return made
        if not made or self.shares[made[0]] <= 0.0:
            self._halve()
        return []

    def _together(self, ops: Sequence[str]) -> str:
        share = self.effects.removed(ops)
        return (
            f"{len(ops)} ops make values that are not finite; {ops[0]} is the first, "
            f"and together they make {share:.0%} of them; their shares are equal parts"
        )

    def _entry(self, row: OpError) -> Blamed:
        op, base = row.op, self.effects.base.error
        part = self._part(op) if self.squares else None
        total = (
            base * base
            if isfinite(base)
            else sum(x for x in self.squares.values() if isfinite(x))
        )
        predicted = None if part is None or not total else min(part / total, 1.0)
        return Blamed(
            *op_fields(row),
            share=self.shares.get(op, predicted),
            predicted=predicted,
            error=self.effects.measured(op),
            bytes=extra_bytes(self.plan, self.graph, op),
            seconds=self.effects.live.ablation.seconds.get(op),
            fault=self._fault(op),
        )

    def _fault(self, op: str) -> str:
        """Return how an op differs from the one that it stands for, if it does."""
        row, base = self.rows[op], self.effects.base
        if row.is_fault:
            return row.fault
        if op in self.beyond:
            return self.beyond[op]
        removed = self.shares.get(op, 0.0) * base.error**2 if not base.lost else 0.0
        least = max(BEYOND * self._part(op), 0.01 * base.error**2)
        if self.squares and row.surprise > SURPRISE and removed > least:
            return (
                f"its own error is {row.own:.2g}, {row.surprise:.1f} times the "
                f"roundoff of its formats; rounding explains "
                f"{self._part(op) / base.error**2:.0%} of the error"
            )
        return ""


def extra_bytes(plan: Plan, graph: ProgramGraph, op: str) -> int:
    """Return the additional bytes that an op reads and writes in full precision."""
    decision, found = plan.by_op.get(op), graph.op_by_name.get(op)
    if decision is None or found is None or not plan.low:
        return 0
    more = itemsize(plan.full) - itemsize(plan.low)
    pairs = [
        *zip(found.operands, decision.operands, strict=False),
        *zip(found.results, decision.results, strict=False),
    ]
    low = {name for name, dtype in pairs if dtype == plan.low}
    return sum(graph.values[name].elements * more for name in low) * found.trips


def _rank(entry: Blamed) -> tuple[float, float]:
    share = -inf if entry.share is None else entry.share
    return (0.0 if entry.fault else 1.0), -share


def _recorded(row: OpError, error: float, predicted: float | None) -> Blamed:
    """Return an entry by the rows of a report alone."""
    share = row.share
    if share is not None and predicted and isfinite(error) and error:
        share = min(share * (predicted / error) ** 2, 1.0)
    return Blamed(
        *op_fields(row),
        share=share,
        predicted=share,
        fault=row.fault if row.is_fault else "",
    )
