"""What ``verify`` found: plain data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from amprewrite.errors import VerifyError
from amprewrite.verify.blame import OpError, worst
from amprewrite.verify.text import summary_lines

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The errors of one float output; see :class:`amprewrite.verify.metrics.Errors`.

    Attributes:
        name: Its path in the output's structure: ``past_key_values.0.1``.
        dtype: Dtype that the converted model gives it in.
        shape: Its shape; complex outputs count as pairs of reals.
        relative_l2: ``|a - r| / |r|`` in the Euclidean norm.
        max_abs: Largest absolute difference.
        max_rel: Largest relative difference, with the root mean square as floor.
        sqnr_db: Signal to quantization noise, in dB.
        cosine: Cosine of the angle between both.
        argmax_agreement: Share of rows with the largest element at the same place.
        nonfinite_reference: Elements of the reference that are not finite.
        nonfinite: Elements of the converted output that are not finite.
        nonfinite_new: Those of them where the reference is finite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative_l2: float
    max_abs: float
    max_rel: float
    sqnr_db: float
    cosine: float
    argmax_agreement: float | None
    nonfinite_reference: int
    nonfinite: int
    nonfinite_new: int


@dataclass(frozen=True, slots=True)
class GradientError:
    """The error of the gradient of one parameter.

    Attributes:
        name: The parameter.
        relative_l2: ``|a - r| / |r|`` in the Euclidean norm.
        cosine: Cosine of the angle between both; NaN where one of them is zero.
    """

    name: str
    relative_l2: float
    cosine: float


@dataclass(frozen=True)
class Report:
    """How far a converted model is from the original.

    Attributes:
        reference: Dtype in which the original was run as the reference.
        low: Low dtype of the converted model and of the baselines; empty if none.
        error: Relative L2 error over all float outputs together.
        bound: What ``rtol`` allows each output; without ``rtol`` what is to be expected
            of the formats and the depth of the program, or of the original's own
            error; None if neither is known.
        outputs: One for each float output.
        jitted: The same when the whole converted function is compiled as one, where
            the framework does so; XLA may then keep other digits.
        baselines: The same error for what could be used instead: ``original`` (the
            noise floor of its own dtype), ``autocast``, ``cast all``; and, where
            ``jitted`` has rows, for ``converted, jitted``.
        failures: Baselines that could not be run, with the message.
        ops: One for each op with float results, in program order.
        gradients: One for each parameter, if asked for.
        gradient_baselines: Relative L2 error over all gradients, ``converted`` and the
            baselines.
        notes: What the user should know.
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

    @property
    def ok(self) -> bool:
        """Whether every output is finite where it should be, and within the bound."""
        return not self.violations

    @property
    def violations(self) -> tuple[OutputError, ...]:
        """The outputs that are beyond the bound or not finite, the worst first."""
        bound = float("inf") if self.bound is None else self.bound
        rows = (*self.outputs, *self.jitted)
        found = [x for x in rows if x.nonfinite_new or x.relative_l2 > bound]
        return tuple(sorted(found, key=lambda output: -output.relative_l2))

    def worst(self, count: int = 3) -> tuple[OpError, ...]:
        """Return the ops with the largest own errors, the largest first."""
        return worst(self.ops, count)

    def summary(self) -> str:
        """Return a few lines: the error, the baselines, the worst output and ops."""
        return "\n".join(summary_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON data; numbers that are not finite as text."""
        return {"format": FORMAT, **_plain(asdict(self))}

    @classmethod
    def from_json(cls, data: Any, where: str = "report") -> "Report":
        """Return the report held by ``data``, as :meth:`to_json` gives it.

        Raises:
            VerifyError: ``data`` has another format version or lacks a field.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            msg = f"{where}: is no report of format {FORMAT}; save it with Report.save"
            raise VerifyError(msg)
        parts: dict[str, Any] = {k: v for k, v in data.items() if k != "format"}  # pyright: ignore[reportUnknownVariableType]
        try:
            for name, kind in _ROWS.items():
                rows: list[Mapping[str, Any]] = parts[name]
                parts[name] = tuple(kind(**_filled(kind, row)) for row in rows)
            for name in ("baselines", "gradient_baselines"):
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
    "ops": OpError,
    "gradients": GradientError,
}


def _plain(found: Any) -> Any:
    """Return JSON data: ``inf`` and ``nan``, which JSON does not have, as text."""
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(found, (list, tuple)):
        return [_plain(value) for value in found]  # pyright: ignore[reportUnknownVariableType]
    return str(found) if isinstance(found, float) and not isfinite(found) else found


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
