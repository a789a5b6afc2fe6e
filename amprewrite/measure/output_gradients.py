"""Gradients of outputs for probes that differentiate a model: one rule for all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 1472
"""Seed of the numbers: the same for the same outputs, in both frameworks."""


def output_gradients(shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Return a gradient for each float output of a model.

    Where some are scalars they are losses: they get 1, and other outputs 0, so that the
    gradients are those of a step of training. Otherwise they are unit Gaussian numbers.

    Args:
        shapes: The shape of each output.

    Returns:
        A float64 array of each shape.
    """
    if not all(shapes):
        return [np.full(shape, 0.0 if shape else 1.0) for shape in shapes]
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(shape) for shape in shapes]
