"""Simulate training and inference in 8-bit floats, on any device and framework."""

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.api import convert
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS
from amprewrite.errors import ArgumentError
from amprewrite.policy import Policy, Rule, load_policy
from amprewrite.policy.contract import Contract, Scaling

SHORT = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""Short names of formats: those of the OCP, not of the FNUZ family."""

CLASSES = "bf16"
"""The policy that says which contractions may be low."""


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
        ArgumentError: A format or ``scaling`` is unknown.
        CaptureError: The model cannot be captured.
        UnsupportedError: The model is not supported.
    """
    return convert(
        model,
        simulated(formats, scaling),
        args=args,
        kwargs=kwargs,
        overrides=overrides,
        training=training,
        dynamic_shapes=dynamic_shapes,
    )


def simulated(formats: str, scaling: Scaling = "none") -> Policy:
    """Return the policy of :func:`simulate`.

    Raises:
        ArgumentError: A format or ``scaling`` is unknown.
    """
    forward, slash, backward = formats.partition("/")
    names = [_format(forward), _format(backward if slash else forward)]
    if scaling not in ("none", "current"):
        msg = f"found scaling={scaling!r}; want 'none' or 'current'"
        raise ArgumentError(msg)
    base = load_policy(CLASSES)
    contract = Contract(names[0], names[1], scaling)
    return Policy(f"simulate {formats}", ops=base.ops, contract=contract)


def _format(name: str) -> str:
    """Return the name of a format; empty for none.

    Raises:
        ArgumentError: There is none of that name.
    """
    found = SHORT.get(name, name)
    if found in ("", *EIGHT_BIT_FLOATS):
        return found
    want = ", ".join((*SHORT, *EIGHT_BIT_FLOATS))
    msg = f"found format {name!r}; want two of {want} with a slash between them"
    raise ArgumentError(msg)
