"""The report of ``verify`` as plain data."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, prod
from pathlib import Path
from typing import Any, cast

from amprewrite.errors import ArgumentError, UnsupportedError, VerifyError
from amprewrite.measure import ORIGINAL
from amprewrite.page.data import plain
from amprewrite.page.histograms import Exponents
from amprewrite.plan import Plan
from amprewrite.verify.blame import Blame, Effects, Left, Live, blame
from amprewrite.verify.fix import Fix, fix
from amprewrite.verify.rows import (
    DiscreteError,
    GradientError,
    OpError,
    OutputError,
    worst,
)
from amprewrite.verify.text import problems, summary_lines, violations

FORMAT = 2
"""Version of the JSON form."""


@dataclass(frozen=True)
class Report:
    """Errors of a converted model against the original.

    Attributes:
        reference: Dtype in which the original was run as the reference.
        low: Low dtype of the converted model and of the baselines; empty if none.
        error: Relative L2 error over all float outputs together.
        bound: Bound on the error of each output: ``rtol`` if given; else the tolerance
            that the plan was made for; else the error that its roundings explain, see
            :func:`amprewrite.verify.bounds.explained_error`. None if neither is known.
        outputs: Errors of each float output.
        discrete: Errors of each output of integers or booleans.
        together: Whether ``bound`` is on ``error``, of all float outputs together,
            instead of each.
        predicted: First-order relative error of the outputs by the roundings of the
            plan, the root of the sum of squares over the outputs; None if unknown.
        plan: Plan of the converted model, for the HTML page; None if unknown. A saved
            report does not hold it.
        bounds: Bounds on single outputs, by path, if the plan was made for those.
        jitted: Errors of each float output with the whole converted model compiled as
            one, which may then round differently: always for JAX; for torch if the plan
            is for target ``compiled``, or the module was compiled by ``compile=True``.
        baselines: The error of alternatives: ``original`` (the noise floor of its own
            dtype), ``autocast``, ``cast all``; and, where ``jitted`` has rows, of
            ``converted, jitted``.
        failures: Baselines that could not be run, with the message.
        ops: Errors of each op with float results, in program order.
        gradients: Errors of the gradient of each parameter and float input, if
            requested.
        jitted_gradients: The same of the converted model compiled as one, where
            ``jitted`` has rows.
        gradient_baselines: Relative L2 error over all gradients, ``converted`` and the
            baselines.
        notes: Notes for the user.
        live: The models, with which :meth:`blame` and :meth:`fix` run; None in a report
            that was loaded or copied, or where ops could not be compared. It is no data
            of the report: not saved, copied or compared.
    """

    reference: str
    low: str
    error: float
    bound: float | None
    outputs: tuple[OutputError, ...]
    baselines: Mapping[str, float] = field(default_factory=dict[str, float])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    ops: tuple[OpError, ...] = ()
    gradients: tuple[GradientError, ...] = ()
    gradient_baselines: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    jitted: tuple[OutputError, ...] = ()
    discrete: tuple[DiscreteError, ...] = ()
    together: bool = False
    bounds: Mapping[str, float] = field(default_factory=dict[str, float])
    predicted: float | None = None
    plan: Plan | None = field(default=None, repr=False, compare=False)
    jitted_gradients: tuple[GradientError, ...] = ()
    live: Live | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no problem; see :attr:`problems`."""
        return not self.problems

    @property
    def compared(self) -> bool:
        """Whether a float output has an element that is finite in the reference.

        Others have no error: without one, as for a model that gives NaN, there is
        nothing to compare. True if there is no float output.
        """
        sizes = [prod(output.shape) for output in self.outputs]
        lost = [output.nonfinite_reference for output in self.outputs]
        return not 0 < sum(sizes) == sum(lost)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem, the worst output first.

        Problems are float outputs of which no element was :attr:`compared`, that are
        beyond their bound, or not finite where the reference is; gradients beyond
        theirs, if they were compared; faults of ops and inserted casts; and outputs of
        integers or booleans with more elements that differ from the reference than in
        the original itself.
        """
        return tuple(problems(self))

    @property
    def violations(self) -> tuple[OutputError, ...]:
        """The float outputs that are beyond a bound or not finite, the worst first."""
        return violations(self)

    @property
    def limit(self) -> float:
        """The bound; infinite if there is none."""
        return inf if self.bound is None else self.bound

    def bound_of(self, output: OutputError) -> float:
        """Return the bound on the error of ``output``; infinite without one."""
        return self.bounds.get(output.name, inf if self.together else self.limit)

    def worst(self, count: int = 3) -> tuple[OpError, ...]:
        """Return the ops that matter most, in order.

        Faults come first, then ops that made values that are not finite, then the ops
        by their share of the predicted error of the outputs; without a prediction by
        their own errors.
        """
        return worst(self.ops, count)

    def blame(self, top: int = 5) -> Blame:
        """Return the ops that cause the error of the outputs, the worst first.

        Ops are restored to the original's, one by one and in groups, in the captured
        program: at most ``log2(n) + 3`` runs for ``n`` ops. A report that was loaded
        goes by its rows, and says so.

        Args:
            top: Number of ops.

        Raises:
            ArgumentError: ``top`` is no positive integer.
            UnsupportedError: No op was compared, as for a model without a plan.
        """
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
            raise ArgumentError(f"top={top!r}: want the number of ops, 1 or more")
        if not self.ops:
            raise self._without_ops("blame")
        effects = None if self.live is None else Effects(self.live, self._left)
        return blame(self.ops, self.error, self.predicted, effects, top)

    def fix(self, target: float) -> Fix:
        """Return rules that keep the fewest ops full so that the error is ``target``.

        Args:
            target: Relative L2 error of all float outputs together.

        Raises:
            ToleranceError: The target is no positive number, is below the noise floor
                of the original, or is not reached with every op in full precision.
            UnsupportedError: The report was loaded, or no op was compared.
        """
        if not self.ops:
            raise self._without_ops("fix")
        if self.live is None:
            msg = (
                "fix needs the models, and this report was read from data; call "
                "amprewrite.verify(model, converted, args).fix(target)"
            )
            raise UnsupportedError(msg)
        effects = Effects(self.live, self._left)
        return fix(self.ops, effects, target, self.baselines.get(ORIGINAL))

    @property
    def _left(self) -> Left:
        return Left(self.error, sum(output.nonfinite_new for output in self.outputs))

    def _without_ops(self, what: str) -> UnsupportedError:
        notes = "; ".join(n for n in self.notes if n.startswith("no errors by op"))
        msg = (
            f"{what}: the report has no ops ({notes or 'none was compared'}); verify a "
            f"model converted by amprewrite.convert(model, args=args), which has a plan"
        )
        return UnsupportedError(msg)

    def __getstate__(self) -> dict[str, Any]:
        """Return the data, to be copied or pickled; not the models."""
        return {**self.__dict__, "live": None}

    def summary(self) -> str:
        """Return a few lines: the error, the baselines, the worst output and ops."""
        return "\n".join(summary_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON data, with ``ok``.

        Numbers that are not finite become text.
        """
        data = asdict(replace(self, plan=None, live=None))
        del data["plan"], data["live"]
        return {"format": FORMAT, "ok": self.ok, **plain(data)}

    @classmethod
    def from_json(cls, data: Any, where: str = "report") -> "Report":
        """Return the report held by ``data``, as :meth:`to_json` gives it.

        Raises:
            VerifyError: ``data`` has another format version or lacks a field.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            msg = f"{where}: is no report of format {FORMAT}; save it with Report.save"
            raise VerifyError(msg)
        held = cast("dict[str, Any]", data)
        parts = {k: x for k, x in held.items() if k not in ("format", "ok")}
        parts.setdefault("jitted_gradients", [])  # reports had none before 0.2
        try:
            for name, kind in _ROWS.items():
                rows: list[Mapping[str, Any]] = parts[name]
                parts[name] = tuple(kind(**_filled(kind, row)) for row in rows)
            for name in ("baselines", "bounds", "gradient_baselines"):
                parts[name] = {key: float(x) for key, x in parts[name].items()}
            return cls(**_filled(cls, parts))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{where}: not a complete report ({error}); save it with Report.save"
            raise VerifyError(msg) from error

    def save(self, path: str | Path) -> None:
        """Write the report as JSON to ``path``."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Return the report saved at ``path``.

        Raises:
            VerifyError: The file is no report, or of another format version.
        """
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            msg = f"{path}: is no JSON; want a file written by Report.save ({error})"
            raise VerifyError(msg) from error
        return cls.from_json(data, str(path))

    def to_html(
        self,
        path: str | Path,
        *,
        plan: Plan | None = None,
        against: Plan | None = None,
        exponents: Iterable[Exponents] = (),
        blame: Blame | None = None,
        title: str = "",
    ) -> None:
        """Write one HTML page to ``path``: errors by op, graph with casts, tables.

        The page loads nothing and needs no server; it holds the libraries that draw it.

        Args:
            path: The file; one that exists is replaced.
            plan: Plan of the converted model; by default that of the report. A page
                without one has no graph and no casts.
            against: Another plan for the same model, to be compared with it.
            exponents: Histograms of exponents of weights, activations and gradients, to
                be drawn with the ranges of the formats.
            blame: A result of :meth:`blame`, shown first.
            title: Title of the page; by default it names the policy.

        Raises:
            ArgumentError: The file cannot be written.
            PlanMismatchError: The plan's program, from an edited file, cannot be read.
        """
        from amprewrite.page.write import write_page  # noqa: PLC0415  # only if used
        from amprewrite.verify.page import report_page  # noqa: PLC0415  # only if used

        page = report_page(
            self,
            self.plan if plan is None else plan,
            title=title,
            against=against,
            exponents=exponents,
            blame=blame,
        )
        write_page(page, path)

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def __rich__(self) -> Any:  # rich is loaded only when it prints
        """Return the tables that rich prints."""
        from amprewrite.verify.table import report_tables  # noqa: PLC0415  # rich only if used

        return report_tables(self)

    def _repr_html_(self) -> str:
        """Return the tables for a notebook."""
        from amprewrite.verify.table import report_html  # noqa: PLC0415  # rich only if used

        return report_html(self)


_ROWS: Mapping[str, type] = {
    "outputs": OutputError,
    "jitted": OutputError,
    "discrete": DiscreteError,
    "ops": OpError,
    "gradients": GradientError,
    "jitted_gradients": GradientError,
}


def _filled(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the dataclass ``kind`` that ``row`` holds as JSON."""
    parts = dict(row)
    for part in fields(kind):
        found = parts.get(part.name)
        if part.type in (float, float | None) and found is not None:
            parts[part.name] = float(found)
        elif isinstance(found, list):
            parts[part.name] = tuple(found)  # pyright: ignore[reportUnknownArgumentType]
    return parts
