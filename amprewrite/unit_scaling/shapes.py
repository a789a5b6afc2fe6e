"""Factors from the shapes of operands, for the functional ops of both frameworks."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import rules
from amprewrite.unit_scaling.rules import Factors, constrained, derive_rule

Shape = Sequence[Any]
"""Extents: integers, or numbers of a tracer."""

MATRIX = 2


def count(shape: Iterable[Any]) -> Any:
    """Return the number of elements."""
    result = 1
    for extent in shape:
        result = result * extent
    return result


def copies(shape: Shape, result: Shape) -> Any:
    """Return how often broadcasting to ``result`` uses each element.

    Nothing is divided: extents that vary cancel in no tracer.
    """
    missing = len(result) - len(shape)
    return count(
        wanted
        for i, wanted in enumerate(result)
        if i < missing or _is_one(shape[i - missing : i - missing + 1])
    )


def of_linear(x: Shape, weight: Shape, *, readout: bool = False) -> Factors:
    """Return the factors of x (..., in) with a weight (out, in)."""
    find = rules.linear_readout if readout else rules.linear
    return find(fan_in=weight[1], fan_out=weight[0], batch=count(x[:-1]))


def of_matmul(left: Shape, right: Shape, batch: Shape) -> Factors:
    """Return the factors of (..., L, K) times (..., K, R).

    Args:
        left: Shape of the left operand.
        right: Of the right one.
        batch: Extents of the result but the last two.

    Raises:
        ArgumentError: An operand is a vector.
    """
    if min(len(left), len(right)) < MATRIX:
        msg = (
            f"matmul of shapes {tuple(left)} and {tuple(right)}; want two extents or "
            "more each: x[None, :] for a row, x[:, None] for a column"
        )
        raise ArgumentError(msg)
    return rules.matmul(
        rows=left[-2],
        inner=left[-1],
        columns=right[-1],
        left_copies=copies(left[:-2], batch),
        right_copies=copies(right[:-2], batch),
    )


def of_conv(x: Shape, weight: Shape, y: Shape, groups: int) -> Factors:
    """Return the factors of a convolution.

    Args:
        x: (N, channels, *positions), or without N.
        weight: (out, channels / groups, *kernel).
        y: Shape of the result.
        groups: Number of groups.
    """
    places = len(weight) - 2
    return rules.conv(
        fan_in=weight[1] * groups,
        fan_out=weight[0],
        taps=count(weight[2:]),
        inputs=count(x[-places:]),
        outputs=count(y[-places:]),
        batch=count(x[: -places - 1]),
        groups=groups,
    )


def after_conv(
    x: Shape,
    weight: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Any]:
    """Return the spatial extents of the result of a convolution."""
    places = zip(x[2 - len(weight) :], weight[2:], strict=True)
    steps = zip(places, stride, padding, dilation, strict=True)
    return [
        (extent + 2 * pad - dilate * (taps - 1) - 1) // step + 1
        for (extent, taps), step, pad, dilate in steps
    ]


def of_norm(x: Shape, places: int) -> Factors:
    """Return the factors of a normalisation of the last ``places`` extents."""
    return rules.norm(batch=count(x[:-places]))


def of_add(left: Shape, right: Shape, result: Shape) -> Factors:
    """Return the factors of a sum; those of 1 where an operand has one element.

    Such an operand moves all elements alike, and adds nothing to their deviation.
    """
    if _is_one(left) or _is_one(right):
        return Factors(1.0, {"left": 1.0, "right": 1.0}, ("left", "right"))
    return rules.add(left=copies(left, result), right=copies(right, result))


def _is_one(shape: Shape) -> bool:
    """Return whether a shape has one element, and no extent that varies."""
    return all(isinstance(extent, int) and extent == 1 for extent in shape)


@functools.lru_cache(maxsize=1024)
def numbers(
    op: str,
    mult: float,
    constraint: str | None,
    shape: tuple[tuple[str, Any], ...] = (),
) -> tuple[float, ...]:
    """Return the factors of an op as numbers: the output's, then those of the inputs.

    Args:
        op: Name of the op.
        mult: Its multiplier.
        constraint: The constraint, applied.
        shape: Extents and parameters of the op, by name.
    """
    found = constrained(derive_rule(op, mult, **dict(shape)).factors, constraint)
    return (found.forward, *found.backward.values())
