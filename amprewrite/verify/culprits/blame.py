"""Blame: the ops that cause the error of the outputs, ranked by measured effect.

The first runs restore single ops: the one with the largest predicted share, the one
with the largest error of its own beside the roundoff of its formats, and the one with
the largest jump of the accumulated error. If these do not explain the error, groups of
ops are restored: the half that removes more is halved again, down to one op. So there
are at most ``log2(n) + 3`` runs for ``n`` ops.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite, log2
from typing import Any, overload

from amprewrite.dtypes import itemsize
from amprewrite.ir import ProgramGraph
from amprewrite.plan import Plan
from amprewrite.verify.culprits.effects import Effects
from amprewrite.verify.culprits.overflows import overflowing
from amprewrite.verify.ops.op_errors import OpError, worst

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
class Blamed:
    """One op that causes error of the outputs.

    Attributes:
        op: Its name in the plan; of an inserted cast that of its sample.
        canonical: Its name in policies.
        native: Its name in the framework.
        path: Module path.
        source: ``file:line`` of the user's code.
        precision: Dtype that it computes in.
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

    op: str
    canonical: str
    native: str
    path: str
    source: str
    precision: str
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
        place = ", ".join(part for part in (self.path, self.source) if part)
        where = f" at {place}" if place else ""
        fault = f"; {self.fault}" if self.fault else ""
        head = f"{self.op} ({self.native}, {self.precision})"
        return f"{head} {share} of the error ({how}{price}){where}{fault}"


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
        data = {**asdict(self), "measured": self.measured}
        return {key: _plain(value) for key, value in data.items()}


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
            self._singly(op for op in rest if self._is_worth(op))
        entries = sorted(map(self._entry, self.rows.values()), key=_rank)
        notes = (self._together(together),) if len(together) > 1 else ()
        found = self.effects
        return Blame(
            tuple(entries[:top]), found.base.error, found.runs, len(self.free), notes
        )

    def _is_worth(self, op: str) -> bool:
        return self._part(op) > 0.0

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
        seconds = self.effects.live.ablation.seconds.get(op)
        return Blamed(
            op=op,
            canonical=row.canonical,
            native=row.native,
            path=row.path,
            source=row.source,
            precision=row.precision,
            share=self.shares.get(op, predicted),
            predicted=predicted,
            error=self.effects.measured(op),
            bytes=extra_bytes(self.plan, self.graph, op),
            seconds=None if seconds is None else seconds.more,
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
        if row.surprise > SURPRISE and removed > BEYOND * self._part(op):
            known = self.squares and removed > 0.01 * base.error**2
            return (
                (
                    f"its own error is {row.own:.2g}, {row.surprise:.1f} times the "
                    f"roundoff of its formats; rounding explains "
                    f"{self._part(op) / base.error**2:.0%} of the error"
                )
                if known
                else ""
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
        op=row.op,
        canonical=row.canonical,
        native=row.native,
        path=row.path,
        source=row.source,
        precision=row.precision,
        share=share,
        predicted=share,
        fault=row.fault if row.is_fault else "",
    )


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(found, (list, tuple)):
        return [_plain(value) for value in found]  # pyright: ignore[reportUnknownVariableType]
    return str(found) if isinstance(found, float) and not isfinite(found) else found
