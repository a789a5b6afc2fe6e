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
from amprewrite.unit_scaling.rules import Factors, Rule

SEED = 1472
"""Of every sample."""
SAMPLE = 2**20
"""Elements of the output that are drawn; the error of a factor is about 1e-3."""

TAIL = 1e-3
"""Share of the elements that are looked at as the largest ones."""
OUTWEIGHS = 0.9
"""Share of the sum of squares above which the largest elements are a heavy tail.

Of a million Gaussian numbers the largest have 0.013, of their fifth powers 0.46, of
their reciprocals 0.9996."""
DOUBTFUL = 0.3
"""Share from which on a larger sample is drawn; of 8192 ratios they may have 0.37."""
LARGE = 2**17
"""Elements of that sample."""
REPEATED = 32
"""Times as many runs may be made for it."""
FEWEST = 2**12
"""Elements of which a tail is seen."""

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
            one is not finite. An input without a gradient has factor 1 beside others,
            and so has what has no scale: a ratio of Gaussian numbers, of which a larger
            sample has a larger deviation.
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
    sample = _Sample(run, shapes)
    sample.take(SAMPLE, most)
    if sample.tailed(DOUBTFUL):  # which may be chance, in a small sample
        sample.take(LARGE, most * REPEATED)
    tailed = sample.tailed(OUTWEIGHS)
    forward = sample.output - sample.mean**2 * centred
    backward = sample.gradients
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
        what: float(square) ** -0.5 if square and what not in tailed else 1.0
        for what, square in backward.items()
    }
    output = 1.0 if "output" in tailed else forward**-0.5
    why = f"{sample.count} outputs of unit Gaussian inputs, seed {SEED}"
    if tailed:
        why += "; left as it is where a few numbers outweigh all others"
    found = Factors(output, factors, tuple(shapes))
    return Rule(name, mult, "empirical", found, why)


class _Sample:
    """Sums over several runs of one op on Gaussian numbers.

    Attributes:
        count: Elements of the output.
        kept: The elements of the output and of each gradient, :data:`SAMPLE` or more.
    """

    def __init__(self, run: Run, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the op, and the shapes of its inputs."""
        self.run, self.shapes = run, shapes
        self.rng = np.random.default_rng(SEED)
        self.count = self.runs = 0
        self.total = self.squares = 0.0
        self.of_inputs = np.zeros(len(shapes))
        self.kept: dict[str, list[Array]] = {}

    def _draw(self, shape: tuple[int, ...]) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def take(self, elements: int, runs: int) -> None:
        """Run the op until there are so many elements, or runs."""
        while self.count < elements and self.runs < runs:
            inputs = [self._draw(shape) for shape in self.shapes.values()]
            y, gradients = self.run(inputs, self._draw)
            self.count, self.runs = self.count + max(y.size, 1), self.runs + 1
            self.total += float(y.sum(dtype=np.float64))
            self.squares += float(np.square(y, dtype=np.float64).sum())
            self.of_inputs += [
                float(np.square(g, dtype=np.float64).mean()) for g in gradients
            ]
            named = {"output": y, **dict(zip(self.shapes, gradients, strict=True))}
            for what, x in named.items():
                parts = self.kept.setdefault(what, [])
                if sum(part.size for part in parts) < SAMPLE:
                    parts.append(np.ravel(x))

    @property
    def mean(self) -> float:
        """The mean of the output."""
        return self.total / self.count

    @property
    def output(self) -> float:
        """The mean square of the output."""
        return self.squares / self.count

    @property
    def gradients(self) -> dict[str, float]:
        """The mean square of the gradient of each input."""
        return dict(zip(self.shapes, self.of_inputs / self.runs, strict=True))

    def tailed(self, share: float) -> set[str]:
        """Return the names of the output and gradients with a tail above a share."""
        return {what for what, parts in self.kept.items() if _tail(parts) > share}


def _tail(parts: list[Array]) -> float:
    """Return the share that the largest elements have of the sum of squares."""
    x = np.concatenate(parts)
    squares = np.square(x[x != 0], dtype=np.float64)
    count = int(squares.size * TAIL)
    if squares.size < FEWEST or not np.isfinite(squares).all():
        return 0.0
    return float(np.partition(squares, -count)[-count:].sum() / squares.sum())
