"""Contractions for tests, written as labels of dimensions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.interpret.contractions import binder
from tests.jax_programs import normal

EXTENTS = {"b": 2, "c": 3, "m": 4, "k": 8, "h": 5, "n": 16}
"""By label; ``b`` and ``c`` are batch dimensions."""


def layout(left: str, right: str) -> Any:
    """Return dimension numbers of two strings of labels; contracts ``h`` and ``k``."""
    batch = [a for a in "bc" if a in left and a in right]
    terms = [a for a in "hk" if a in left and a in right]
    return (
        (tuple(map(left.index, terms)), tuple(map(right.index, terms))),
        (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
    )


def dot(left: str, right: str) -> Any:
    """Return how a contraction of two strings of labels is bound."""
    return binder(
        lax.dot_general_p,
        {
            "dimension_numbers": layout(left, right),
            "precision": None,
            "preferred_element_type": None,
            "out_sharding": None,
        },
    )


def operand(labels: str, seed: int = 0) -> Any:
    """Return reproducible bfloat16 numbers with the extents of ``labels``."""
    return normal(*(EXTENTS[a] for a in labels), seed=seed).astype(jnp.bfloat16)


def plain(left: str, right: str, x: Any, y: Any) -> Any:
    """Return the contraction in float64."""
    batch = [a for a in "bc" if a in left and a in right]
    free = [a for a in left + right if a not in (*batch, *"hk")]
    wide = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.einsum(f"{left},{right}->{''.join(batch + free)}", *wide)
