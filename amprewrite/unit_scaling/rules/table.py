"""The table of rules: every scaled op, the extents that it needs, its factors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.constraints import Factor
from amprewrite.unit_scaling.moments import NONLINEARITIES
from amprewrite.unit_scaling.rules import extents, softmax
from amprewrite.unit_scaling.rules.elementwise import GATES, elementwise_rule
from amprewrite.unit_scaling.rules.model import Factors, Kind, Rule


@dataclass(frozen=True)
class ShapedOp:
    """An op with factors that depend on extents.

    Attributes:
        factors: Takes extents by keyword, and ``mult`` where ``scales``.
        needs: Extents without which there is no rule.
        takes: Further arguments, with defaults.
        scales: Whether a multiplier changes the rule.
        kind: Source of the factors.
        why: What the kind is based on.
    """

    factors: Callable[..., Factors]
    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()
    scales: bool = False
    kind: Kind = "closed form"
    why: str = field(default="sums of independent terms")


_INTEGRAL = "moments of a softmax of Gaussian logits, integrated in float64"
_LINEAR = ("fan_in", "fan_out", "batch")
_CONV = ("fan_in", "fan_out", "taps", "inputs", "outputs", "batch")
_TAU = "squares of the weights of branch and skip add up to 1"

SHAPED: Mapping[str, ShapedOp] = {
    "add": ShapedOp(extents.add, (), ("left", "right")),
    "conv1d": ShapedOp(extents.conv, _CONV, ("groups",)),
    "conv2d": ShapedOp(extents.conv, _CONV, ("groups",)),
    "cross_entropy": ShapedOp(
        softmax.cross_entropy, ("classes", "batch"), (), True, "quadrature", _INTEGRAL
    ),
    "dropout": ShapedOp(extents.dropout, ("p",), why="the share that is kept"),
    "embedding": ShapedOp(extents.embedding, ("vocabulary", "tokens")),
    "layer_norm": ShapedOp(extents.norm, ("batch",)),
    "linear": ShapedOp(extents.linear, _LINEAR),
    "linear_readout": ShapedOp(extents.linear_readout, _LINEAR),
    "matmul": ShapedOp(
        extents.matmul, ("rows", "inner", "columns"), ("left_copies", "right_copies")
    ),
    "mse_loss": ShapedOp(extents.mse_loss, ("size",)),
    "residual_add": ShapedOp(extents.residual, ("tau",), why=_TAU),
    "residual_apply": ShapedOp(extents.residual, ("tau",), why=_TAU),
    "residual_split": ShapedOp(extents.residual, ("tau",), why=_TAU),
    "rms_norm": ShapedOp(extents.norm, ("batch",)),
    "scaled_dot_product_attention": ShapedOp(
        softmax.attention,
        ("queries", "keys", "head"),
        ("value_head", "causal", "p"),
        True,
        "quadrature",
        _INTEGRAL,
    ),
    "softmax": ShapedOp(softmax.softmax, ("size",), (), True, "quadrature", _INTEGRAL),
}
"""Ops with factors that depend on extents, by name."""

RULES = tuple(sorted({*SHAPED, *NONLINEARITIES, *GATES}))
"""Names of all ops that have a rule."""


def derive_rule(name: str, mult: float = 1.0, **shape: Any) -> Rule:
    """Return the rule of an op, with the source of its factors.

    Args:
        name: A name of :data:`RULES`.
        mult: The multiplier m, above 0: an elementwise op computes f(mx)/m, softmax,
            attention and cross entropy multiply their logits. Others have none.
        **shape: Extents and parameters, such as ``fan_in=256`` or ``alpha=1.0``.

    Raises:
        UnitScalingError: The name is unknown, an extent is missing or not known to
            the op, or the multiplier is not usable.
    """
    if name not in RULES:
        near = get_close_matches(name, RULES, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RULES)};"
        )
        msg = (
            f"no rule of unit scaling for {name!r}; {hint} rule_of_function and "
            "measure_rule make one of a function of your own"
        )
        raise UnitScalingError(msg)
    if not 0 < mult < math.inf:
        msg = f"{name}: mult is {mult}; want a finite number above 0, such as 1.0"
        raise UnitScalingError(msg)
    if name not in SHAPED:
        function = GATES.get(name, name)
        _check_names(name, shape, (), tuple(NONLINEARITIES[function].parameters))
        return elementwise_rule(name, mult, dict(shape))
    op = SHAPED[name]
    _check_names(name, shape, op.needs, op.takes)
    factors = op.factors(**shape, **({"mult": mult} if op.scales else {}))
    return Rule(name, mult, op.kind, factors, op.why, dict(shape))


def rule(
    name: str, mult: float = 1.0, **shape: Any
) -> tuple[Factor, Factor | Mapping[str, Factor]]:
    """Return the factors of an op before any constraint.

    The output times the first has scale 1 for unit Gaussian inputs; the gradient of an
    input times the second has scale 1 for a unit gradient of the output. Scale means
    standard deviation, for softmax and gated units root mean square.

    Args:
        name: A name of :data:`RULES`.
        mult: The multiplier, as for :func:`derive_rule`.
        **shape: Extents and parameters.

    Returns:
        Forward factor and backward factor; the second is a mapping by name of the input
        where an op has several.

    Raises:
        UnitScalingError: As :func:`derive_rule`.
    """
    return derive_rule(name, mult, **shape).pair()


def _check_names(
    name: str, shape: Mapping[str, Any], needs: tuple[str, ...], takes: tuple[str, ...]
) -> None:
    """Refuse extents that are missing or not known."""
    missing = [key for key in needs if key not in shape]
    unknown = [key for key in shape if key not in (*needs, *takes)]
    if not missing and not unknown:
        return
    parts = [
        *([f"is given without {', '.join(missing)}"] if missing else []),
        *([f"does not take {', '.join(unknown)}"] if unknown else []),
    ]
    wants = ", ".join([*needs, *(f"{key} (optional)" for key in takes)]) or "none"
    msg = f"the rule of {name} {' and '.join(parts)}; its extents: {wants}"
    raise UnitScalingError(msg)
