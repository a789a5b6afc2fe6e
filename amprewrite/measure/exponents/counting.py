"""Count the exponents of an array."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.measure.exponents.rows import Exponents


def exponents_of(
    values: NDArray[Any], name: str, kind: str, path: str = ""
) -> Exponents:
    """Return the exponents of an array.

    Args:
        values: Floats of any dtype that float64 holds exactly, of any shape.
        name: Name of the tensor.
        kind: One of :data:`amprewrite.measure.exponents.KINDS`.
        path: Module path or source line.
    """
    wide = np.abs(np.ravel(values).astype(np.float64))
    finite = wide[np.isfinite(wide)]
    inside = finite[finite > 0]
    _, above = np.frexp(inside)  # inside = m * 2**above, 0.5 <= m < 1
    found, times = np.unique(above - 1, return_counts=True)
    return Exponents(
        name,
        kind,
        path,
        dict(zip(found.tolist(), times.tolist(), strict=True)),
        zeros=finite.size - inside.size,
        nonfinite=wide.size - finite.size,
        largest=float(inside.max(initial=0.0)),
    )
