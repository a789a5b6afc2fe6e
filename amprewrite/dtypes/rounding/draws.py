"""Random numbers for stochastic rounding, from a seed."""

import sys
from typing import Any

from amprewrite.dtypes.arrays import library_of
from amprewrite.dtypes.rounding.library import namespace_of


def uniform_draws(x: Any, seed: Any) -> Any:  # noqa: ANN401  # any library's
    """Return uniform numbers of [0, 1), float32, in the shape of ``x``.

    Each library draws by its own generator: the same seed gives the same numbers in one
    library, and others in another.

    Args:
        x: An array of NumPy, JAX or torch; only its shape and device are read.
        seed: An ``int``; for JAX a key of ``jax.random``, too.
    """
    library = library_of(x)
    xp = namespace_of(x)
    if library == "numpy":
        return xp.random.default_rng(seed).random(x.shape, dtype=xp.float32)
    if library == "torch":
        generator = xp.Generator(device=x.device).manual_seed(seed)
        return xp.rand(x.shape, generator=generator, device=x.device, dtype=xp.float32)
    random: Any = sys.modules["jax"].random
    key = random.key(seed) if isinstance(seed, int) else seed
    return random.uniform(key, x.shape)
