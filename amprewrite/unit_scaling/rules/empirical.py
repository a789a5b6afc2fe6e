"""Rules measured on a sample: unit Gaussian inputs, unit Gaussian output gradients.

For ops without a formula. The sample is the same everywhere: NumPy draws it from a
fixed seed, whatever framework computes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.rules.model import Factors, Rule

SEED = 1472
"""Of every sample."""
SAMPLE = 2**20
"""Elements of the output that are drawn; the error of a factor is about 1e-3."""

Array = NDArray[Any]
Draw = Callable[[tuple[int, ...]], Array]
"""Draws a unit Gaussian array of a shape."""
Run = Callable[[Sequence[Array], Draw], tuple[Array, list[Array]]]
"""A run of the op, forward and backward.

It takes inputs, and a function that draws the gradient of the output, and gives the
output and the gradients of the inputs."""

_measured: WeakKeyDictionary[Run, dict[tuple[Any, ...], Rule]] = WeakKeyDictionary()


def measure_rule(
    run: Run,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    name: str = "function",
    mult: float = 1.0,
    centred: bool = True,
    runs: int = SAMPLE,
) -> Rule:
    """Return the rule of an op as a sample shows it.

    Args:
        run: Runs the op and its backward pass on float32 arrays.
        shapes: Shape of each differentiable input, by its name.
        name: Name of the op in the rule.
        mult: Multiplier that ``run`` applies; it is only recorded.
        centred: Whether the output gets standard deviation 1, the convention for
            functions of one input; else root mean square 1.
        runs: Most runs, where outputs are so small that :data:`SAMPLE` elements would
            take many.

    Returns:
        A rule of kind ``empirical``. It is remembered for the same ``run`` (the same
        object), shapes and multiplier.

    Raises:
        UnitScalingError: The output, or the gradient of every input, is all zero; or
            one is not finite. An input without a gradient has factor 1 beside others.
    """
    known = _measured.setdefault(run, {})
    key = (tuple(shapes.items()), name, mult, centred, runs)
    if key not in known:
        known[key] = _measure(run, shapes, name, mult, centred=centred, most=runs)
    return known[key]


def _measure(
    run: Run,
    shapes: Mapping[str, tuple[int, ...]],
    name: str,
    mult: float,
    *,
    centred: bool,
    most: int,
) -> Rule:
    """Draw samples until there are :data:`SAMPLE` elements, and average squares."""
    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...]) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    count, total, squares = 0, 0.0, 0.0
    of_inputs = np.zeros(len(shapes))
    runs = 0
    while count < SAMPLE and runs < most:
        y, gradients = run([draw(shape) for shape in shapes.values()], draw)
        count, runs = count + max(y.size, 1), runs + 1
        total += float(y.sum(dtype=np.float64))
        squares += float(np.square(y, dtype=np.float64).sum())
        of_inputs += [float(np.square(g, dtype=np.float64).mean()) for g in gradients]
    forward = squares / count - (total / count) ** 2 * centred
    backward = dict(zip(shapes, of_inputs / runs, strict=True))
    gradients_of = {f"gradient of {key}": value for key, value in backward.items()}
    passes = any(backward.values())
    for what, square in {"output": forward, **gradients_of}.items():
        if square == 0 and what != "output" and passes:
            continue
        if not 0 < square < math.inf:
            msg = (
                f"{name}: the {what} has mean square {square:g} for unit Gaussian "
                "inputs; want one that is finite and above 0"
            )
            raise UnitScalingError(msg)
    factors = {
        what: float(square) ** -0.5 if square else 1.0
        for what, square in backward.items()
    }
    found = Factors(forward**-0.5, factors, tuple(shapes))
    why = f"{count} outputs of unit Gaussian inputs, seed {SEED}"
    return Rule(name, mult, "empirical", found, why)
