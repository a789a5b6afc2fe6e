"""Simulate training and inference in 8-bit floats, on any device and framework."""

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.api import convert
from amprewrite.policy import Rule
from amprewrite.policy.load import simulated_name
from amprewrite.policy.model import Scaling


def simulate(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: object,
    formats: str = "e4m3/e5m2",
    *,
    scaling: Scaling = "none",
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    training: bool | None = None,
    dynamic_shapes: object = None,
) -> Any:  # noqa: ANN401  # a program of the kind that came in
    """Return ``model`` with contractions that round to 8-bit floats, else in float32.

    Operands of each contraction (linear layers, matrix products, convolutions,
    attention) are rounded to the forward format, with saturation; the gradient of its
    result to the backward format. Both passes read the rounded operands, and multiply
    and sum in float32. The derivative of the rounding is that of the identity.
    Attention in one kernel rounds queries, keys and values, and not its probabilities.
    It is :func:`amprewrite.convert` with the policy ``simulate e4m3/e5m2``, which other
    functions take, too.

    Args:
        model: As :func:`amprewrite.convert` takes it.
        formats: Forward and backward format, ``e4m3/e5m2``, or full names
            (``float8_e4m3fnuz/float8_e5m2fnuz``); one name alone is for both; an empty
            one rounds nothing (``e4m3/``: no gradients).
        scaling: ``none``, or ``current``: a power of two for each tensor, from its own
            largest number.
        args: As in :func:`amprewrite.convert`.
        kwargs: As there.
        overrides: As there; a rule of class ``deny`` leaves contractions in float32.
        training: As there.
        dynamic_shapes: As there.

    Returns:
        A program of the same kind; ``.plan`` has the formats of each contraction.

    Raises:
        PolicyError: A format or ``scaling`` is unknown.
        CaptureError: The model cannot be captured.
        UnsupportedError: The model is not supported.
    """
    return convert(
        model,
        simulated_name(formats, scaling),
        args=args,
        kwargs=kwargs,
        overrides=overrides,
        training=training,
        dynamic_shapes=dynamic_shapes,
    )
