"""Batches of scikit-learn's handwritten digits, for the examples in this folder."""

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits


def batches(
    seed: int, steps: int, size: int = 64
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield images, ``[size, 8, 8]`` float32 from 0 to 1, and their labels."""
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8)
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = generator.choice(len(images), size, replace=False)
        yield images[chosen], digits[chosen]
