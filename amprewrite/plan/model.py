"""Plan: the decisions of the passes as plain data, the only input of the writers.

A plan can be read, compared, edited as JSON and applied in another process.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from amprewrite.dtypes import FORMATS, from_short_name
from amprewrite.errors import PlanMismatchError
from amprewrite.ir import Op
from amprewrite.ops.compounds import NAMES
from amprewrite.page.histograms import Exponents
from amprewrite.plan.compounds import Compound, find_compounds
from amprewrite.plan.fields import (
    MANY,
    AccumulatorName,
    ClassName,
    Cost,
    Count,
    DtypeName,
    Error,
    FloatName,
    Folding,
    FormatName,
    GradientError,
    Index,
    KernelName,
    Lowering,
    LowName,
    Mode,
    Recompute,
    ScalingName,
    Target,
    Text,
    TimedPlan,
)
from amprewrite.plan.file import FORMAT, load_table, save_table
from amprewrite.plan.text import (
    DEFAULT_PRICES,
    diff_lines,
    explain,
    explain_lines,
    summary_lines,
)
from amprewrite.policy import OpClass, Reason, Rule
from amprewrite.policy.model import KEYS, key_matches
from amprewrite.runtime.fast_init import fast_init

# Select decisions by the keys of rules, by class, precision and compound.


class Wanted(TypedDict, total=False):
    """Keys of a selection: those of a rule, and the decision's.

    Attributes:
        path: Module path or glob, as in a rule: a module means all that is in it.
        group: Glob over the group of the op, such as ``normalisation``.
        op: Glob over the canonical or native name.
        native: Glob over the native name.
        op_name: Glob over a decision's ``op``.
        source: Glob over ``file:line``.
        op_class: Class, such as ``deny``.
        precision: Dtype that the op computes in, long or short.
        compound: Compound that the op is a part of, or one call of it.
    """

    path: str
    group: str
    op: str
    native: str
    op_name: str
    source: str
    op_class: str
    precision: str
    compound: str


def select(plan: "Plan", wanted: Wanted) -> "tuple[Decision, ...]":
    """Return the decisions that match all that is wanted, in program order.

    Raises:
        TypeError: There is no such key.
        PlanMismatchError: There is no such class, dtype or compound.
    """
    if unknown := sorted(set(wanted) - set(Wanted.__annotations__)):
        keys = ", ".join(Wanted.__annotations__)
        msg = f"select() has no key {unknown[0]!r}; want some of {keys}"
        raise TypeError(msg)
    op_class, compound = wanted.get("op_class"), wanted.get("compound")
    _check("op_class", op_class, tuple(map(str, OpClass)))
    _check("compound", compound and compound.partition("#")[0], sorted(NAMES))
    precision = wanted.get("precision")
    dtype = precision and _dtype(plan, precision)
    globs = {key: str(glob) for key, glob in wanted.items() if key in KEYS}
    inside = None
    if compound is not None:
        calls = (c for c in plan.compounds if compound in (c.name, c.call))
        inside = {decision.op for call in calls for decision in call.ops}
    return tuple(
        decision
        for decision in plan.decisions
        if op_class in (None, decision.op_class)
        and dtype in (None, decision.precision)
        and (inside is None or decision.op in inside)
        and all(key_matches(k, glob, _as_op(decision)) for k, glob in globs.items())
    )


def _as_op(decision: "Decision") -> Op:
    """Return the op of a decision as far as rules look at it."""
    d = decision
    return Op(d.op, d.canonical, d.native, (), (), path=d.path, source=d.source)


def _dtype(plan: "Plan", text: str) -> str:
    """Return the long name of a dtype that a plan may have.

    Raises:
        PlanMismatchError: There is no such dtype.
    """
    found = from_short_name(text)
    _check("precision", found, (*FORMATS, *{d.precision for d in plan.decisions}))
    return found


def _check(key: str, found: str | None, known: "tuple[str, ...] | list[str]") -> None:
    """Check that a word is one that some plan may have.

    Raises:
        PlanMismatchError: It is not.
    """
    if found is None or found in known:
        return
    msg = f"select({key}={found!r}): want one of {', '.join(filter(None, known))}"
    raise PlanMismatchError(msg)


OUTPUT = "output"
"""Consumer name of a cast that restores the dtype of a program output."""

NOTHING_LOWERED = "rewritten 0 of"
"""Prefix of the warning that nothing was lowered."""


@fast_init
@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about one op: class, precision, dtypes and reasons.

    Attributes:
        op: Unique name of the op in the graph.
        canonical: Its name in policies.
        native: Its name in the framework.
        op_class: allow, deny, accumulate, promote, follow or keep.
        precision: Name of the dtype that it computes in.
        rule: Key of the policy that decided the class, for people: ``ops.softmax``.
        why: Reason as text, for people.
        causes: Path of ops that forced the precision, nearest first.
        path: Module path.
        source: ``file:line`` of the user's code.
        operands: Dtype in which each operand is read.
        results: Dtype in which each result is made.
        reason: Kind of the source of the class: op table, rule, marker, ...
        accumulator: For a contraction, the dtype of the sums that its kernel returns;
            the result is rounded from it. Empty for other ops.
        derivative: For a contraction, the dtype of the operands of its derivatives. The
            framework differentiates other ops at the dtypes that they run in.
        derivative_accumulator: For a contraction, the dtype of the sums that the
            kernels of its derivatives return; ``operand`` for the dtype of the operand
            that the gradient is for.
        forward: For a contraction, the 8-bit format to which its operands are rounded;
            empty if they are not.
        backward: For a contraction, the 8-bit format to which the gradient of its
            result is rounded; empty if it is not.
        scaling: Scale of the rounded tensors, ``none`` or ``current``; empty if none
            is rounded.
        kernel: Kernel of the product of 8 bits, ``auto`` or ``scaled_mm``, where torch
            has one for the op; empty if it is emulated.
        calls: The calls of functions and modules such as softmax that the op is a part
            of, outermost first, see :class:`amprewrite.ir.Op`.
    """

    op: Text
    canonical: Text
    native: Text
    op_class: ClassName
    precision: Text
    rule: Text
    why: Text
    causes: tuple[Text, ...] = ()
    path: Text = ""
    source: Text = ""
    operands: tuple[Text, ...] = ()
    results: tuple[Text, ...] = ()
    reason: Reason = Reason.OPS
    accumulator: LowName = ""
    derivative: LowName = ""
    derivative_accumulator: AccumulatorName = ""
    forward: FormatName = ""
    backward: FormatName = ""
    scaling: ScalingName = ""
    kernel: KernelName = ""
    calls: tuple[Text, ...] = ()

    @property
    def quantises(self) -> bool:
        """Whether operands or gradients are rounded to 8 bits."""
        return bool(self.forward or self.backward)


@fast_init
@dataclass(frozen=True, slots=True)
class Cast:
    """One change of dtype of one value, shared by all its consumers.

    Attributes:
        value: Name of the value that is cast.
        from_dtype: Dtype before.
        to_dtype: Dtype after.
        shape: Shape of the value.
        bytes: Bytes read and written at run time, at all iterations of a loop together;
            0 if folded.
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
        region: Body that contains it.
        trips: Number of executions in one run of the program.
        why: Reason as text.
        path: Module path of its first consumer.
        source: ``file:line`` of its first consumer.
    """

    value: Text
    from_dtype: DtypeName
    to_dtype: DtypeName
    shape: tuple[Count | Text, ...]
    bytes: Count
    producer: Text
    uses: tuple[tuple[Text, Index], ...]
    is_weight: bool = False
    folded: bool = False
    folding: Folding = ""
    saturate: bool = False
    region: Text = ""
    trips: Count = 1
    why: Text = ""
    path: Text = ""
    source: Text = ""

    @property
    def consumers(self) -> tuple[str, ...]:
        """Names of the ops that read the cast value, without repetition."""
        return tuple(dict.fromkeys(op for op, _ in self.uses))


@dataclass(frozen=True)
class Plan:
    """Plan for one program: decisions, casts, cost and the settings behind them.

    Attributes:
        policy: Name of the policy.
        placement: Name of the strategy.
        low: Low dtype; empty if the policy has none.
        full: Full dtype.
        captured: How the program was captured, with the reason for a fallback.
        decisions: One for each op, in program order.
        casts: Every cast, in order of first use.
        storage: Dtype in which each parameter stored otherwise is kept, by value.
        warnings: Facts for the user: nothing lowered, unused rules, ...
        cost: See :class:`Cost`.
        predicted_error: First-order relative error of the outputs; None if unknown.
        target: How the program is run, which sets the prices of ``cost``: ``eager`` (op
            by op) or ``compiled``. Empty in a plan of an older version: the framework's
            default.
        prices: Source of the prices of ``cost``: ``default``, or the measured device.
        tolerance: Bound on the relative L2 error of all float outputs together that the
            plan was made for; None without one.
        tolerances: The same for single outputs, by output path.
        training: Whether the parameters keep their dtype, to be trained, and gradients
            may be taken through the program.
        mode: Mode of the torch model that was captured, ``train`` or ``eval``.
        outputs: Dtype in which each output is returned.
        program: Fingerprint of the program, see
            :mod:`amprewrite.plan.validation.fingerprint`.
        overrides: Rules that went before those of the policy. With the policy and
            ``target`` they also plan further programs of the model: another signature,
            the other mode, the rules of custom derivatives.
        policy_digest: Hash of the policy without its names and explanations.
        recompute: Values that a training step keeps, and regions that it computes
            again from them; empty unless asked for.
        gradient_error: Predicted error of the parameters' gradients, for a plan with
            8-bit contractions that was made for training within a tolerance; None if
            unknown.
        timed: The candidates of placement ``fastest``, the fastest first: the plan is
            that one. Empty for other placements.
        lowerings: Record of what was done to the program that eager calls of the
            converted torch model run. It decides nothing: a program that is made by
            the plan is lowered anew, where it will run. Empty with ``lowering=False``,
            of :func:`amprewrite.inspect`, and in JAX. Plans are compared without it.
    """

    policy: Text
    placement: Text
    low: LowName
    full: FloatName
    captured: Text
    decisions: Annotated[tuple[Decision, ...], MANY]
    casts: Annotated[tuple[Cast, ...], MANY]
    storage: Annotated[tuple[tuple[Text, FloatName], ...], MANY] = ()
    warnings: tuple[Text, ...] = ()
    cost: Cost = field(default_factory=lambda: Cost(0, 0, 0, 0, 0))
    predicted_error: Error | None = None
    target: Target = ""
    prices: Text = DEFAULT_PRICES
    tolerance: Error | None = None
    tolerances: tuple[tuple[Text, Error], ...] = ()
    training: bool = False
    mode: Mode = ""
    outputs: tuple[Text, ...] = ()
    program: Annotated[tuple[Text, ...], MANY] = ()
    overrides: tuple[Rule, ...] = ()
    policy_digest: Text = ""
    recompute: Recompute = field(default_factory=Recompute)
    gradient_error: GradientError | None = None
    timed: tuple[TimedPlan, ...] = ()
    lowerings: Annotated[tuple[Lowering, ...], MANY] = field(default=(), compare=False)

    @cached_property
    def by_op(self) -> dict[str, Decision]:
        """Decisions by op name."""
        return {decision.op: decision for decision in self.decisions}

    @property
    def unclassified(self) -> tuple[Decision, ...]:
        """Decisions about ops that the policy does not name; they run as traced."""
        return tuple(d for d in self.decisions if d.reason is Reason.UNCLASSIFIED)

    @property
    def lowered(self) -> tuple[Decision, ...]:
        """Decisions that lower an op; ops traced in the low dtype do not count."""
        if not self.low:
            return ()
        found = (d for d in self.decisions if d.precision == self.low)
        return tuple(d for d in found if d.op_class != "keep")

    @property
    def low_derivatives(self) -> tuple[Decision, ...]:
        """Contractions that run in full and are differentiated in the low dtype."""
        if not self.low:
            return ()
        found = (d for d in self.decisions if d.derivative == self.low)
        return tuple(d for d in found if d.precision != self.low)

    @property
    def quantised(self) -> tuple[Decision, ...]:
        """Decisions about contractions that round operands or gradients to 8 bits."""
        return tuple(d for d in self.decisions if d.quantises)

    @property
    def changes(self) -> bool:
        """Whether applying the plan changes the captured program."""
        if self.low or self.casts or self.quantised:
            return True
        return any(d.reason is Reason.PROMOTION for d in self.decisions)

    @property
    def runtime_casts(self) -> tuple[Cast, ...]:
        """Casts that are executed at every run of the program."""
        return tuple(cast for cast in self.casts if not cast.folded)

    def summary(self) -> str:
        """Return about ten lines: counts, compounds, the largest modules, casts."""
        return "\n".join(summary_lines(self))

    def explain(self, op: str) -> str:
        """Return the reason for the precision of an op, or of several.

        Args:
            op: A decision's ``op``; or a compound such as ``softmax``, or one call of
                it, ``softmax#3``; or the path of a module, for all that is in it.

        Raises:
            PlanMismatchError: The plan has nothing of that name.
        """
        if op not in self.by_op:
            return "\n".join(explain(self, op))
        return "\n".join(explain_lines(self, self.by_op[op]))

    @cached_property
    def compounds(self) -> tuple[Compound, ...]:
        """The compounds in program order: each call of softmax, a norm, a loss, ...

        They are found by the names of functions and modules, of kernels, and, where
        there is no name, by the ops that make a softmax or a norm.
        """
        return find_compounds(self)

    def select(self, **wanted: Unpack[Wanted]) -> tuple[Decision, ...]:
        """Return the decisions that match all that is given, in program order.

        Args:
            **wanted: ``path``, ``group``, ``op``, ``native``, ``op_name``, ``source``
                as in a :class:`amprewrite.Rule`; ``op_class``, such as ``deny``;
                ``precision``, the dtype that an op computes in, ``bfloat16`` or
                ``bf16``; ``compound``, ``softmax`` or one call, ``softmax#3``.

        Raises:
            TypeError: There is no such key.
            PlanMismatchError: There is no such class, dtype or compound.
        """
        return select(self, wanted)

    def diff(self, other: "Plan") -> tuple[str, ...]:
        """Return one line for each op or cast in which ``other`` differs."""
        return tuple(diff_lines(self, other))

    def with_warnings(self, *warnings: str) -> "Plan":
        """Return the plan with more warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON to ``path``.

        Raises:
            PlanMismatchError: It cannot be written there.
        """
        save_table(asdict(self), path)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Return the plan saved at ``path``.

        Raises:
            PlanMismatchError: The file cannot be read, is no plan, or is of another
                format version; every mistake is named with its place.
        """
        return cls.from_json(load_table(path), str(path))

    @classmethod
    def from_json(cls, data: object, where: str = "plan") -> "Plan":
        """Return the plan held by ``data``, as :meth:`to_json` gives it.

        Raises:
            PlanMismatchError: ``data`` has another format version, or mistakes.
        """
        from amprewrite.plan.read import read_table  # noqa: PLC0415  # pydantic only if used

        return read_table(cls, data, where)

    def to_html(
        self,
        path: str | Path,
        *,
        against: "Plan | None" = None,
        exponents: Iterable[Exponents] = (),
        title: str = "",
    ) -> None:
        """Write one HTML page to ``path``: summary, graph with casts, tables.

        The page loads nothing and needs no server; it holds the libraries that draw it.

        Args:
            path: The file; one that exists is replaced.
            against: Another plan for the same model, to be compared with this one.
            exponents: Histograms of exponents of weights, activations and gradients, to
                be drawn with the ranges of the formats.
            title: Title of the page; by default it names the policy.

        Raises:
            ArgumentError: The file cannot be written.
            PlanMismatchError: The plan's program, from an edited file, cannot be read.
        """
        from amprewrite.page.write import write_page  # noqa: PLC0415  # only if used
        from amprewrite.plan.page import plan_page  # noqa: PLC0415  # only if used

        page = plan_page(self, title=title, against=against, exponents=exponents)
        write_page(page, path)

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def __rich__(self) -> Any:  # noqa: ANN401  # rich's own, loaded when it prints
        """Return the table that rich prints."""
        from amprewrite.plan.table import plan_table  # noqa: PLC0415  # rich only if used

        return plan_table(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        from amprewrite.plan.table import plan_html  # noqa: PLC0415  # rich only if used

        return plan_html(self)
