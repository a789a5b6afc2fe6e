"""Delayed scales of 8-bit tensors: a rule on the largest numbers of earlier steps."""

from dataclasses import dataclass
from typing import Any, Literal

from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS, format_of
from amprewrite.dtypes.rounding import quantise_by, scale_of
from amprewrite.errors import ArgumentError


@dataclass(frozen=True)
class DelayedRule:
    """Rule that makes a scale of the largest numbers (amax) of earlier steps.

    Attributes:
        history: Number of steps whose largest numbers are kept.
        margin: Binary orders of magnitude left free above the largest number.
        algorithm: ``max``: the scale comes from the largest number of all steps kept;
            ``most_recent``: from that of the last step.

    Source: the recipe DelayedScaling of Transformer Engine 2. Scales are powers of two
    here, which round nothing by themselves.
    """

    history: int = 16
    margin: int = 0
    algorithm: Literal["max", "most_recent"] = "max"

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ArgumentError: One of them has no meaning.
        """
        if self.history < 1:
            msg = f"history is {self.history} steps; want 1 or more"
            raise ArgumentError(msg)
        if self.algorithm not in ("max", "most_recent"):
            msg = f"algorithm is {self.algorithm!r}; want 'max' or 'most_recent'"
            raise ArgumentError(msg)

    def apply(self, x: Any, amaxes: Any, name: str, xp: Any) -> tuple[Any, Any, Any]:
        """Round a tensor by the scale of earlier steps.

        Before the first step nothing is known, and the scale is that of ``x`` itself.
        Numbers beyond the range become the largest one of the format.

        Args:
            x: A float32 array with at least one element.
            amaxes: The largest numbers, float32, the last step first; 0 for none yet.
            name: The 8-bit format.
            xp: The library of the arrays: ``torch`` or ``jax.numpy``.

        Returns:
            The rounded array; the largest numbers with that of ``x``; and the number of
            elements that were beyond the range.
        """
        if name not in EIGHT_BIT_FLOATS:
            msg = f"found format {name!r}; want one of {', '.join(EIGHT_BIT_FLOATS)}"
            raise ArgumentError(msg)
        finite = xp.where(xp.isfinite(x), x, 0.0)
        amax = abs(finite).max()
        known = amaxes if self.algorithm == "max" else amaxes[:1]
        largest = xp.where((amaxes > 0).any(), known.max(), amax)
        scale = scale_of(largest.reshape(1), name) * 2.0**-self.margin
        saturated = (abs(finite) * scale > format_of(name).max).sum()
        made = quantise_by(x, name, (scale,))
        return made, xp.concatenate((amax.reshape(1), amaxes[:-1])), saturated
