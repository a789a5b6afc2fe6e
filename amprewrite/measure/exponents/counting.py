"""Count the exponents of one run, as a framework shows its tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.measure.exponents.histogram import ExponentHistogram
from amprewrite.measure.exponents.rows import Exponents, Kind
from amprewrite.measure.runs import Look, Observed


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


_KINDS: dict[tuple[bool, bool], Kind] = {
    (True, False): "weight",
    (False, False): "activation",
    (True, True): "weight gradient",
    (False, True): "activation gradient",
}
"""Kind of a tensor, by whether it is a parameter's and whether it is a gradient."""


def count_exponents(show: Callable[[Look], None]) -> ExponentHistogram:
    """Return the exponents of the tensors of a run.

    No tensor is kept. Gradients have the order of their tensors.

    Args:
        show: Runs a model, and calls a function with each tensor.
    """
    rows: dict[Kind, dict[str, Exponents]] = {kind: {} for kind in _KINDS.values()}

    def look(found: Observed) -> None:
        kind = _KINDS[found.parameter, found.gradient]
        row = exponents_of(found.values(), found.name, kind, found.path)
        rows[kind][found.name] = row

    show(look)
    pairs: tuple[tuple[Kind, Kind], ...] = (
        ("weight", "weight gradient"),
        ("activation", "activation gradient"),
    )
    for values, gradients in pairs:
        found = rows[gradients]
        rows[gradients] = {name: found[name] for name in rows[values] if name in found}
    return ExponentHistogram(tuple(row for k in rows.values() for row in k.values()))
