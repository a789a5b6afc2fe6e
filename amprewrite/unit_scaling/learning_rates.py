"""Learning rates and residual weights of u-muP, as plain numbers.

With them the best learning rate of a unit-scaled model stays the same when the model
becomes wider or deeper. A weight of Adam learns by its fan-in, as a step changes every
weight by about the learning rate, and the output by the sum of them.

Source: Blake et al., u-muP: The Unit-Scaled Maximal Update Parametrization (arXiv
2407.17465), tables 2 and 3 and appendix G.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from amprewrite.errors import UnitScalingError

MupType = Literal["weight", "bias", "norm", "output"]
"""Kind of a parameter: hidden matrix, bias, scale of a norm, matrix of the readout.

An embedding is a weight; its fan-in is the width of a row.
"""

MUP_TYPES: tuple[MupType, ...] = get_args(MupType)

Optimizer = Literal["adam", "sgd"]
"""Rule of the optimizer; AdamW and others with normalised steps count as ``adam``."""

READOUT_CONSTRAINTS = (None, "to_output_scale")
"""Constraints of the last layer, by which SGD scales its other layers."""


def fan_in(shape: Sequence[int]) -> int:
    """Return the number of products in one output of a parameter.

    Args:
        shape: (n,) of a vector; (out, in, ...) of a matrix or a kernel.

    Raises:
        UnitScalingError: It has no dimensions.
    """
    if not shape:
        msg = "a parameter of shape () has no fan-in; want one of 1 dimension or more"
        raise UnitScalingError(msg)
    return shape[0] if len(shape) == 1 else math.prod(shape[1:])


def check_type(found: object, where: str = "mup_type") -> None:
    """Check that ``found`` is a type of parameters.

    Raises:
        UnitScalingError: It is not; the message has those there are.
    """
    if found not in MUP_TYPES:
        want = ", ".join(MUP_TYPES)
        msg = f"{where}: found {found!r}; want one of {want}"
        raise UnitScalingError(msg)


def learning_rate_multiplier(
    mup_type: MupType,
    shape: Sequence[int],
    optimizer: Optimizer = "adam",
    *,
    depth: int | None = None,
    readout_constraint: str | None = None,
) -> float:
    """Return the multiplier of the learning rate for one parameter.

    Args:
        mup_type: Kind of the parameter.
        shape: Its shape, (out, in, ...).
        optimizer: ``adam``, also for AdamW, or ``sgd``.
        depth: Number of layers in the stack that it is in; None outside of stacks, and
            for a model without depth scaling.
        readout_constraint: Constraint of the ``linear_readout`` of the model; for SGD
            alone.

    Raises:
        UnitScalingError: The type, the optimizer, the constraint or the depth is
            unknown.
    """
    check_type(mup_type)
    if optimizer not in get_args(Optimizer):
        msg = f"optimizer: found {optimizer!r}; want 'adam' or 'sgd'"
        raise UnitScalingError(msg)
    if readout_constraint not in READOUT_CONSTRAINTS:
        msg = (
            f"readout_constraint: found {readout_constraint!r}; want None or "
            f"'to_output_scale', those with a known rule"
        )
        raise UnitScalingError(msg)
    if depth is not None and depth < 1:
        msg = f"depth: found {depth}; want the number of layers, 1 or more"
        raise UnitScalingError(msg)
    by_depth = 1.0 if depth is None else depth**-0.5
    follows_output = optimizer == "sgd" and readout_constraint == "to_output_scale"
    match mup_type:
        case "weight":
            return by_depth * fan_in(shape) ** (0.5 if follows_output else -0.5)
        case "bias" | "norm":
            return by_depth * (fan_in(shape[:1]) if follows_output else 1)
        case "output":
            return by_depth


def residual_taus(
    branches: Sequence[Literal["attention", "mlp"]],
    *,
    multiplier: float = 1.0,
    attention_ratio: float = 1.0,
) -> tuple[float, ...]:
    """Return the weight ``tau`` of each residual branch, for ``residual_apply``.

    Then every branch of a kind adds the same to the output, whatever the depth, and the
    embedding as much as all attention branches together or all of the MLP would at
    ``multiplier`` 1.

    Args:
        branches: Kind of each branch, in order: ``("attention", "mlp") * layers``.
        multiplier: Size of the branches against that of the embedding.
        attention_ratio: Size of attention branches against those of the MLP.

    Raises:
        UnitScalingError: A branch is of no known kind, or a number is not above zero.
    """
    if multiplier <= 0 or attention_ratio <= 0:
        msg = (
            f"found multiplier={multiplier:g} and attention_ratio="
            f"{attention_ratio:g}; want numbers above 0"
        )
        raise UnitScalingError(msg)
    return tuple(_taus(branches, multiplier, attention_ratio))


def _taus(
    branches: Sequence[str], multiplier: float, attention_ratio: float
) -> Iterator[float]:
    mlp = multiplier * math.sqrt(2 / (1 + attention_ratio**2))
    sizes = {"attention": attention_ratio * mlp, "mlp": mlp}
    before = len(branches) / 2
    for index, branch in enumerate(branches):
        if branch not in sizes:
            msg = f"branches[{index}]: found {branch!r}; want 'attention' or 'mlp'"
            raise UnitScalingError(msg)
        yield sizes[branch] / math.sqrt(before)
        before += sizes[branch] ** 2
