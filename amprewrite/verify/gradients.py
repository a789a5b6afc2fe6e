"""Errors of gradients, with those compared by size that are zero but for rounding."""

from collections.abc import Callable, Iterator, Mapping
from math import sqrt

from amprewrite.measure import ORIGINAL, REFERENCE
from amprewrite.measure.runs import Array, Run
from amprewrite.verify.bounds import LOW_BASELINES, unit_roundoff
from amprewrite.verify.metrics import cosine, norm, parts, ratio
from amprewrite.verify.rows import GradientError

Bounds = Callable[[float | None, float | None], float]
"""Bound on the error of a gradient, by those of a baseline and of the original."""

NOISE = 2.0**10
"""Noise level of gradients, in unit roundoffs of the reference.

Relative to the root mean square of all gradients, a reference gradient below it is
rounding itself: a key bias of BERT-base has 1e-17 in float64 where the others have
1e-3, about 50 unit roundoffs.
"""


def gradient_errors(
    runs: Mapping[str, Run], found: Run, reference: str, bound_of: Bounds
) -> Iterator[GradientError]:
    """Yield the error of the gradient of each parameter and input that ``found`` has.

    A gradient that is zero has no relative error: it is compared by its size against
    all gradients together.

    Args:
        runs: The reference among them, and the original if it was run.
        found: The run to compare.
        reference: Dtype of the reference.
        bound_of: Returns the bound on a gradient, by the error of the best baseline in
            low precision and by that of the original, None where they were not run.
    """
    wanted = runs[REFERENCE].gradients
    own = runs[ORIGINAL].gradients if ORIGINAL in runs else dict[str, Array]()
    lows = [runs[name].gradients for name in LOW_BASELINES if name in runs]
    typical = _root_mean_square(wanted)
    for name, exact in wanted.items():
        if name not in found.gradients:
            continue
        held = found.gradients[name]
        difference, size = parts(held, exact)
        others = typical * sqrt(exact.size)
        noise = NOISE * unit_roundoff(reference) * others
        floor = parts(own[name], exact)[0] if name in own else None
        zero = size <= max(noise, floor or 0.0)
        unit = others if zero else size
        best = min((parts(low[name], exact)[0] for low in lows), default=None)
        original = None if floor is None else ratio(floor, unit)
        yield GradientError(
            name=name,
            relative_l2=ratio(difference, unit),
            cosine=cosine(held, exact),
            zero=zero,
            is_input=name in found.inputs,
            original=original,
            bound=bound_of(None if best is None else ratio(best, unit), original),
        )


def _root_mean_square(arrays: Mapping[str, Array]) -> float:
    """Return the root mean square of all elements of all arrays."""
    count = sum(array.size for array in arrays.values())
    squares = sum(norm(array) ** 2 for array in arrays.values())
    return sqrt(squares / count) if count else 0.0
