"""The rule of dynamic loss scaling on plain numbers, for both frameworks.

Gradients that are too small for float16 become zero; a loss multiplied by a scale has
gradients as many times as large. Gradients that are not finite show that the scale is
too large: the step is skipped and the scale reduced. After many finite steps it grows.
Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740), section 3.2.

Gradients are divided by the scale that they were made with, never by the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amprewrite.dtypes import FORMATS

INITIAL_SCALE = 2.0**16
"""Scale that a run begins with. Source: torch.amp.GradScaler, flax DynamicScale."""

FLOAT32_MAX = FORMATS["float32"].max
"""Largest finite float32, in which scales are kept."""

Where = Callable[[Any, Any, Any], Any]
"""Elementwise choice between two values by a condition, as ``jnp.where``."""


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` if ``condition``, else ``no``: ``where`` for plain numbers."""
    return yes if condition else no


@dataclass(frozen=True)
class ScaleRule:
    """Rule that changes a loss scale after a step; defaults of torch.amp.GradScaler.

    All libraries follow one rule with different numbers; see :data:`RULES`.

    Attributes:
        growth: Factor of the scale after ``interval`` finite steps in a row; above 1.
        backoff: Factor of the scale after a step that was not finite; below 1. None
            divides by ``growth``, which rounds otherwise where it is no power of two.
        interval: Number of finite steps in a row after which the scale grows.
        minimum: Least scale that a step that was not finite leaves.
        maximum: Largest scale that growth gives, at most the largest float32.
        clips: Whether a scale that would grow beyond ``maximum`` becomes ``maximum``;
            otherwise it stays, and powers of two remain powers of two.
    """

    growth: float = 2.0
    backoff: float | None = 0.5
    interval: int = 2000
    minimum: float = 0.0
    maximum: float = FLOAT32_MAX
    clips: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of their ranges.

        Raises:
            ValueError: A number is out of its range; the message names all of them.
        """
        wanted = {
            "growth > 1": self.growth > 1,
            "0 < backoff < 1": self.backoff is None or 0 < self.backoff < 1,
            "interval >= 1": self.interval >= 1,
            "0 <= minimum": self.minimum >= 0,
            "minimum <= maximum": self.minimum <= self.maximum,
            f"maximum <= {FLOAT32_MAX}": self.maximum <= FLOAT32_MAX,
        }
        wrong = [text for text, holds in wanted.items() if not holds]
        if wrong:
            msg = f"{self} cannot scale a loss; want {', '.join(wrong)}"
            raise ValueError(msg)

    def step(
        self, scale: Any, tracker: Any, finite: Any, where: Where = choose
    ) -> tuple[Any, Any]:
        """Return the scale for the next step and the number of finite steps in a row.

        Args:
            scale: The scale of the step: a number, or a float32 scalar of a framework.
            tracker: Number of finite steps in a row before it: an int, or an integer
                scalar.
            finite: Whether all gradients of the step are finite: a bool, or a bool
                scalar.
            where: ``jnp.where`` or ``torch.where`` for scalars of a framework.
        """
        counted = tracker + 1
        grows = counted >= self.interval
        grown = scale * self.growth
        limit = self.maximum if self.clips else scale
        grown = where(grown > self.maximum, limit, grown)
        shrunk = scale / self.growth if self.backoff is None else scale * self.backoff
        shrunk = where(shrunk < self.minimum, self.minimum, shrunk)
        return (
            where(finite, where(grows, grown, scale), shrunk),
            where(finite, where(grows, 0, counted), 0),
        )

    def is_stuck(self, scale: Any, finite: Any) -> Any:
        """Return whether the step is not finite although the scale is at its minimum.

        Args:
            scale: The scale of the step.
            finite: Whether all its gradients are finite, as a bool or a bool scalar;
                not negated with ``~``, which is not a negation of plain bools.
        """
        return (scale <= self.minimum) & (finite == False)  # noqa: E712  # arrays too


RULES = {
    # torch/amp/grad_scaler.py; the scale is not grown beyond float32.
    "torch": ScaleRule(),
    # jmp 0.0.4, loss_scale.py.
    "jmp": ScaleRule(backoff=None, minimum=1.0),
    # mpx 0.1.8, _loss_scaling.py: the largest scale is the largest float16.
    "mpx": ScaleRule(
        backoff=None, minimum=1.0, maximum=FORMATS["float16"].max, clips=True
    ),
    # flax/training/dynamic_scale.py: grows at the finite step after 2000 others.
    "flax": ScaleRule(
        interval=2001, minimum=FORMATS["float32"].smallest_normal, clips=True
    ),
}
"""The rules of torch, jmp, mpx and flax with their defaults."""


def is_useful(low: str) -> bool:
    """Return whether a loss scale helps gradients in a dtype.

    It does where the dtype has fewer exponents than float32: float16 and the 8-bit
    floats lose gradients below their smallest subnormal, bfloat16 does not.

    Args:
        low: Name of the low dtype of a policy; empty if nothing is lowered.
    """
    full = FORMATS["float32"].exponent_bits
    return low in FORMATS and 0 < FORMATS[low].exponent_bits < full


def advice(low: str, *, scales: bool, unit_scaled: bool = False) -> str:
    """Return a hint about a loss scale and a low dtype; empty if there is none.

    Args:
        low: Name of the dtype in which gradients are held without a scale of their own:
            the low dtype of a policy, or its 8-bit format of gradients; empty if
            nothing is lowered.
        scales: Whether the loss is scaled.
        unit_scaled: Whether the model is unit-scaled, so that gradients have a scale
            near 1 already.
    """
    if unit_scaled and is_useful(low):
        return (
            f"a loss scale beside unit scaling: gradients have a scale near 1 without "
            f"it, and overflow {low} with it; want no loss scale"
            if scales
            else ""
        )
    if is_useful(low) and not scales:
        least = FORMATS[low].smallest_subnormal
        return (
            f"training in {low} without a loss scale: gradients below {least:.1e} "
            f"become zero; use a dynamic loss scale, or bfloat16"
        )
    if scales and not is_useful(low):
        kind = f"{low} has" if low in FORMATS else "without a low dtype gradients have"
        return (
            f"a loss scale is not needed: {kind} the exponents of float32; "
            f"it is applied all the same"
        )
    return ""


def stuck(scale: float, name: str) -> str:
    """Return the message of an error: no smaller scale makes the gradients finite.

    Args:
        scale: The scale, at its minimum.
        name: Name of the first parameter whose gradient is not finite; empty if it is
            not known.
    """
    whose = f"the gradient of {name} is" if name else "gradients are"
    return (
        f"{whose} not finite with the loss scale at its minimum, {scale:g}, so that "
        f"no smaller scale helps; look for infinities or NaN in the data and the loss, "
        f"a learning rate that is too large, or an op to keep in full precision"
    )
