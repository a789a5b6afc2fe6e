"""Exponents of all tensors of one run: totals, shares by format, a loss scale."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from amprewrite.dtypes import format_of
from amprewrite.errors import ArgumentError, TargetError
from amprewrite.measure.exponents.rows import KINDS, Exponents, Shares, together
from amprewrite.measure.exponents.text import summary_lines

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class ExponentHistogram:
    """Exponents of the numbers of one run of a model.

    Attributes:
        tensors: Weights, activations, gradients of weights, gradients of activations;
            within a kind in the order of the model or of the run.
    """

    tensors: tuple[Exponents, ...]

    def of(self, kind: str) -> tuple[Exponents, ...]:
        """Return the tensors of a kind; see :data:`KINDS`."""
        return tuple(row for row in self.tensors if row.kind == kind)

    @property
    def totals(self) -> Mapping[str, Exponents]:
        """Exponents of all tensors of a kind together, by kind."""
        found = {kind: self.of(kind) for kind in KINDS}
        return {kind: together(rows, kind, kind) for kind, rows in found.items()}

    def share_below(self, format: str, scale: float = 1.0) -> Mapping[str, Shares]:  # noqa: A002  # the word of the field
        """Return the shares of numbers that a format loses, by kind.

        Args:
            format: Its name, such as ``float16``.
            scale: Power of two that gradients are multiplied by before, as by a loss
                scale; weights and activations are not.

        Raises:
            PromotionError: There is no such format.
            ArgumentError: ``scale`` is no power of two, or the format one of integers.
        """
        return {
            kind: row.share_below(format, scale if "gradient" in kind else 1.0)
            for kind, row in self.totals.items()
        }

    def loss_scale(self, format: str = "float16") -> float:  # noqa: A002  # the word of the field
        """Return the loss scale that the gradients suggest for a format.

        It is the largest power of two of which the product with the largest gradient is
        below the largest number of the format. Gradients of scalars, such as the loss
        itself, do not count where there are others: losses are computed in float32.
        Gradients of one run are no bound on those of another: a dynamic loss scale
        adapts.

        Args:
            format: Its name.

        Raises:
            PromotionError: There is no such format.
            ArgumentError: There are no gradients, or they are all zero.

        Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740),
        section 3.2.
        """
        rows = [row for row in self.tensors if "gradient" in row.kind and row.bound]
        arrays = [row for row in rows if row.size > 1]
        largest = max((row.bound for row in arrays or rows), default=0.0)
        if not largest:
            msg = (
                "the histogram has no gradients other than zero; want those of a loss: "
                "histogram(model, args, gradients=True)"
            )
            raise ArgumentError(msg)
        (room, above), (part, exponent) = map(
            math.frexp, (format_of(format).max, largest)
        )
        return math.ldexp(1.0, above - exponent - (part >= room))

    def to_json(self) -> dict[str, Any]:
        """Return the histogram as plain JSON data."""
        return {"format": FORMAT, "tensors": [_plain(row) for row in self.tensors]}

    @classmethod
    def from_json(cls, data: Any, where: str = "histogram") -> "ExponentHistogram":
        """Return the histogram held by ``data``, as :meth:`to_json` gives it.

        Raises:
            TargetError: ``data`` has another format version or lacks a field.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            msg = (
                f"{where}: is no histogram of format {FORMAT}; save it with "
                "ExponentHistogram.save"
            )
            raise TargetError(msg)
        try:
            rows = cast("dict[str, Any]", data)["tensors"]
            return cls(tuple(_row(row) for row in rows))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = (
                f"{where}: not a complete histogram ({error}); save it with "
                "ExponentHistogram.save"
            )
            raise TargetError(msg) from error

    def save(self, path: str | Path) -> None:
        """Write the histogram as JSON to ``path``."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "ExponentHistogram":
        """Return the histogram saved at ``path``.

        Raises:
            TargetError: The file is no histogram, or of another format version.
        """
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            msg = (
                f"{path}: is no JSON; want a file written by ExponentHistogram.save "
                f"({error})"
            )
            raise TargetError(msg) from error
        return cls.from_json(data, str(path))

    def plot(self, scale: float = 1.0) -> Any:
        """Return a ``matplotlib.figure.Figure``: a panel for each kind of tensor.

        The ranges of float16, bfloat16, float8_e4m3fn and float8_e5m2 are drawn over
        the counts.

        Args:
            scale: Power of two; where it is not 1, gradients are drawn a second time,
                multiplied by it.

        Raises:
            ArgumentError: ``scale`` is no power of two.
            UnsupportedError: matplotlib is not installed.
        """
        from amprewrite.measure.exponents.plot import plot_exponents  # noqa: PLC0415  # matplotlib only if used

        return plot_exponents(self, scale)

    def __str__(self) -> str:
        """Return a few lines: shares by kind and format, and the loss scale."""
        return "\n".join(summary_lines(self))

    def __rich__(self) -> Any:  # rich is loaded only when it prints
        """Return the tables that rich prints: shares by kind, then every tensor."""
        from amprewrite.measure.exponents.table import exponent_tables  # noqa: PLC0415  # rich only if used

        return exponent_tables(self)


def _plain(row: Exponents) -> dict[str, Any]:
    """Return a row as JSON data, which has neither NaN nor numbers as keys."""
    counts = {str(e): n for e, n in row.counts.items()}
    largest = row.largest if math.isfinite(row.largest) else None
    return {**asdict(row), "counts": counts, "largest": largest}


def _row(data: Any) -> Exponents:
    parts = dict(data)
    counts = {int(e): int(n) for e, n in parts.pop("counts").items()}
    largest = parts.pop("largest", None)
    largest = math.nan if largest is None else float(largest)
    return Exponents(**parts, counts=counts, largest=largest)
