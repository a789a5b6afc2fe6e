"""Random programs with a guard, as a formula that both frameworks run."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

LEAST = -3.4028234663852886e38
"""``finfo(float32).min``."""


@dataclass(frozen=True)
class Names:
    """Functions of a framework under one name each.

    Attributes:
        clip: Clips to a least and a greatest number; None for no bound.
        where: Chooses by a condition.
        full: Makes a tensor like another, filled with a number.
        of: Other functions of one argument, by name.
    """

    clip: Callable[..., Any]
    where: Callable[..., Any]
    full: Callable[..., Any]
    of: Callable[[str], Callable[..., Any]]


Formula = Callable[[Names, Any, Any], Any]
"""Function of the names, a product and the input of that product."""

BOUNDED_BY_ONE = ("log of 1 - y", "log1p of -y", "acos", "atanh", "1 / (1 - y)")
ABOVE_ONE = ("acosh", "log of y - 1", "1 / (y - 1)")
POSITIVE = ("log", "rsqrt", "reciprocal", "sqrt", "power", "x / y", "sum, log")


READERS: dict[str, Callable[[Names, Any, Any], Any]] = {
    "log of 1 - y": lambda n, y, _: n.of("log")(1 - y),
    "log of y - 1": lambda n, y, _: n.of("log")(y - 1),
    "log1p of -y": lambda n, y, _: n.of("log1p")(-y),
    "1 / (1 - y)": lambda _n, y, _: 1 / (1 - y),
    "1 / (y - 1)": lambda _n, y, _: 1 / (y - 1),
    "power": lambda _n, y, _: y**-0.5,
    "x / y": lambda _n, y, x: x / y,
    "sum, log": lambda n, y, _: n.of("log")(y.sum(0)),
}
"""Readers of the guarded value ``y``, of the names and the input ``x``, by name."""


def _guard(kind: str, n: Names, a: Any, low: float | None, high: float | None) -> Any:
    """Return ``a`` between ``low`` and ``high``, by the guard called ``kind``."""
    if kind == "clip":
        return n.clip(a, low, high)
    if kind == "where":
        a = a if low is None else n.where(a < low, low, a)
        return a if high is None else n.where(a > high, high, a)
    a = a if low is None else n.where(a < low, n.full(a, low), a)
    return a if high is None else n.where(a > high, n.full(a, high), a)


def program(seed: int) -> tuple[str, str, Formula]:
    """Return the policy, a description and the formula of a random program."""
    draw = Random(seed)
    policy = draw.choice(("bf16", "fp16"))
    kind = draw.choice(("clip", "where", "constant"))
    scale = draw.choice((0.5, 1.0, 1.5))
    around = draw.choice(("product", "sum", "scaled", "moved"))
    near = {"bf16": (1e-3, 1e-4, 1e-6), "fp16": (1e-4, 1e-5, 1e-6)}[policy]
    gap = draw.choice(near)
    case = draw.choice(("below one", "above one", "positive", "mask"))
    if case == "positive" and policy == "bf16":
        case = "below one"  # bfloat16 has the small numbers of float32
    least: float | None = None
    most: float | None = None
    if case == "below one":
        reader, (least, most) = draw.choice(BOUNDED_BY_ONE), (-1 + gap, 1 - gap)
    elif case == "above one":
        reader, least = draw.choice(ABOVE_ONE), 1 + gap
    elif case == "positive":
        reader, least = draw.choice(POSITIVE), draw.choice((1e-8, 1e-7, 1e-6))
    else:
        reader, least = "softmax", draw.choice((-1e9, -1e10, LEAST))

    def formula(n: Names, a: Any, x: Any) -> Any:
        if around == "sum":
            a = a + x
        elif around == "scaled":
            a = a * scale
        elif around == "moved":
            a = a.T
        if case == "mask":
            masked = n.where(a > (9 if draw_all else 0), a, least)
            return n.of("softmax")(masked)
        y = _guard(kind, n, a, least, most)
        read = READERS.get(reader)
        return read(n, y, x) if read else n.of(reader)(y)

    draw_all = draw.random() < 0.5  # whether all is masked
    words = f"{case}, {kind}, {around}, {reader}, {least}, {most}"
    return policy, words, formula


def arguments(seed: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return a matrix near the identity and another, in numbers that low has."""
    draw = Random(seed)
    parts = (-1.0, -0.5, 0.0, 0.0, 0.0, 0.25, 1.0, 1.0)
    x = [[draw.choice(parts) for _ in range(4)] for _ in range(4)]
    w = [[float(i == j) for j in range(4)] for i in range(4)]
    return x, w
