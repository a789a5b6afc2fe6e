"""What the passes decide and the only thing that writers consume: plain data.

A plan can be read, compared, edited as JSON and applied in another process.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amprewrite.errors import PlanMismatchError
from amprewrite.plan.text import (
    DEFAULT_PRICES,
    diff_lines,
    explain_lines,
    summary_lines,
)

if TYPE_CHECKING:
    from rich.console import Group

OUTPUT = "output"
"""Consumer name of a cast that restores the dtype of a program output."""

NOTHING_LOWERED = "rewritten 0 of"
"""How the warning begins that nothing was lowered."""

OUTER_PRODUCT = "contraction"
"""Rule of the decisions about contractions that sum nothing."""

PROMOTION = "promotion"
"""Rule of the decisions about ops that promotion changed."""

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for one op, and why.

    Attributes:
        op: Unique name of the op in the graph.
        canonical: Its name in policies.
        native: Its name in the framework.
        op_class: allow, deny, accumulate, promote, follow or keep.
        precision: Name of the dtype that it computes in.
        rule: What decided the class: ``ops.softmax``, ``rules[2]``, ``unclassified``.
        why: The reason in words.
        causes: Path of ops that forced the precision, nearest first.
        path: Module path.
        source: ``file:line`` of the user's code.
        operands: Dtype in which each operand is read.
        results: Dtype in which each result is made.
    """

    op: str
    canonical: str
    native: str
    op_class: str
    precision: str
    rule: str
    why: str
    causes: tuple[str, ...] = ()
    path: str = ""
    source: str = ""
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cast:
    """One change of dtype of one value, shared by all its consumers.

    Attributes:
        value: Name of the value that is cast.
        from_dtype: Dtype before.
        to_dtype: Dtype after.
        shape: Shape of the value.
        bytes: Bytes read and written at run time, at all turns of a loop together; 0
            if folded.
        producer: Op that makes the value; empty for inputs and parameters.
        uses: Consumers as (op, operand index); :data:`OUTPUT` with its position.
        is_weight: Whether the value is a parameter, or reached from one by data
            movement alone.
        folded: Whether it costs nothing at run time: done once at conversion, or
            inside the consuming kernel.
        folding: How it is folded: ``storage`` (the weight is stored so), ``copy`` (a
            weight with uses in both precisions, of which a second copy is kept),
            ``kernel`` (the consumer promotes or converts), ``dtype`` (the consumer's
            ``dtype=`` argument); empty if not.
        saturate: Whether finite values beyond the range become the largest finite
            ones (additive masks) instead of infinities.
        region: Body that it stands in.
        trips: How often it runs when the program runs once.
        why: The reason in words.
        path: Module path of its first consumer.
        source: ``file:line`` of its first consumer.
    """

    value: str
    from_dtype: str
    to_dtype: str
    shape: tuple[int | str, ...]
    bytes: int
    producer: str
    uses: tuple[tuple[str, int], ...]
    is_weight: bool = False
    folded: bool = False
    folding: str = ""
    saturate: bool = False
    region: str = ""
    trips: int = 1
    why: str = ""
    path: str = ""
    source: str = ""

    @property
    def consumers(self) -> tuple[str, ...]:
        """Names of the ops that read the cast value, each once."""
        return tuple(dict.fromkeys(op for op, _ in self.uses))


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan costs; bytes as if every cast and op ran on its own.

    Attributes:
        casts: Casts at run time.
        cast_elements: Elements that they convert.
        cast_bytes: Bytes that they read and write; folded casts count 0.
        op_bytes: Bytes that the ops read and write.
        total_bytes: The sum of ``cast_bytes``, ``op_bytes`` and ``overhead_bytes``:
            what placement ``optimal`` minimises.
        overhead_bytes: Launches of casts, contractions that lose speed by running in
            full, and error terms, as the bytes that could be moved in the same time.
        lower_bound: Certified least ``total_bytes``; None unless optimal.
    """

    casts: int
    cast_elements: int
    cast_bytes: int
    op_bytes: int
    total_bytes: int
    overhead_bytes: int = 0
    lower_bound: int | None = None


@dataclass(frozen=True)
class Plan:
    """Decisions and casts for one program.

    Attributes:
        policy: Name of the policy.
        placement: Name of the strategy.
        low: Low dtype; empty if the policy has none.
        full: Full dtype.
        captured: How the program was captured, with the reason for a fallback.
        decisions: One for each op, in program order.
        casts: Every cast, in order of first use.
        storage: Dtype in which each parameter stored otherwise is kept, by value.
        warnings: What the user should know: nothing lowered, unused rules, ...
        cost: See :class:`Cost`.
        predicted_error: First-order relative error of the outputs; None if unknown.
        prices: Where the prices of ``cost`` come from: ``default``, or the device on
            which they were measured.
    """

    policy: str
    placement: str
    low: str
    full: str
    captured: str
    decisions: tuple[Decision, ...]
    casts: tuple[Cast, ...]
    storage: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    cost: Cost = field(default_factory=lambda: Cost(0, 0, 0, 0, 0))
    predicted_error: float | None = None
    prices: str = DEFAULT_PRICES

    @cached_property
    def by_op(self) -> dict[str, Decision]:
        """Decisions by op name."""
        return {decision.op: decision for decision in self.decisions}

    @property
    def unclassified(self) -> tuple[Decision, ...]:
        """Ops that the policy does not name; they run as traced."""
        return tuple(d for d in self.decisions if d.rule == "unclassified")

    @property
    def lowered(self) -> tuple[Decision, ...]:
        """Ops that compute in the low dtype by this plan, not because they were so."""
        if not self.low:
            return ()
        found = (d for d in self.decisions if d.precision == self.low)
        return tuple(d for d in found if d.op_class != "keep")

    @property
    def changes(self) -> bool:
        """Whether a program run by the plan is another one than was captured."""
        promoted = any(d.rule == PROMOTION for d in self.decisions)
        return bool(self.low or self.casts or promoted)

    @property
    def runtime_casts(self) -> tuple[Cast, ...]:
        """Casts that run each time the program runs."""
        return tuple(cast for cast in self.casts if not cast.folded)

    def summary(self) -> str:
        """Return a few lines: what was lowered, which casts, what is unclassified."""
        return "\n".join(summary_lines(self))

    def explain(self, op: str) -> str:
        """Return why the op named ``op`` runs as it does.

        Raises:
            PlanMismatchError: No decision has that name.
        """
        if op not in self.by_op:
            near = [name for name in self.by_op if op in name][:5]
            hint = f"; similar: {', '.join(near)}" if near else ""
            msg = f"plan has no op {op!r} among {len(self.by_op)}{hint}"
            raise PlanMismatchError(msg)
        return "\n".join(explain_lines(self, self.by_op[op]))

    def diff(self, other: "Plan") -> tuple[str, ...]:
        """Return one line for each op or cast in which ``other`` differs."""
        return tuple(diff_lines(self, other))

    def with_warnings(self, *warnings: str) -> "Plan":
        """Return the plan with more warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON to ``path``."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", "utf-8")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Return the plan saved at ``path``.

        Raises:
            PlanMismatchError: The file is no plan, or of another format version.
        """
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            msg = f"{path}: is no JSON; want a file written by Plan.save ({error})"
            raise PlanMismatchError(msg) from error
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: object, where: str = "plan") -> "Plan":
        """Return the plan held by ``data``, as :meth:`to_json` gives it.

        Raises:
            PlanMismatchError: ``data`` has another format version or lacks a field.
        """
        table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        if table.get("format") != FORMAT:
            msg = (
                f"{where}: is no plan of format {FORMAT}; save it again with Plan.save"
            )
            raise PlanMismatchError(msg)
        parts = {key: part for key, part in table.items() if key != "format"}
        try:
            parts["decisions"] = tuple(
                Decision(**_tuples(d)) for d in parts["decisions"]
            )
            parts["casts"] = tuple(Cast(**_tuples(c)) for c in parts["casts"])
            parts["cost"] = Cost(**parts["cost"])
            return cls(**_tuples(parts))
        except (AttributeError, KeyError, TypeError) as error:
            msg = (
                f"{where}: not a complete plan ({error}); save it again with Plan.save"
            )
            raise PlanMismatchError(msg) from error

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def __rich__(self) -> "Group":
        """Return the table that rich prints."""
        from amprewrite.plan.table import plan_table  # noqa: PLC0415  # rich only if used

        return plan_table(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        from amprewrite.plan.table import plan_html  # noqa: PLC0415  # rich only if used

        return plan_html(self)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    def freeze(found: object) -> object:
        if not isinstance(found, list):
            return found
        return tuple(freeze(part) for part in cast("list[object]", found))

    return {key: freeze(value) for key, value in data.items()}
