"""Factors as numbers, and shapes with extents that may vary in exported programs."""

from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.unit_scaling.rules import shapes

Array = Any


def shape_of(x: Array) -> tuple[Any, ...]:
    """Return the extents of ``x``; those that are symbols as scalars of the program."""
    return tuple(
        extent if isinstance(extent, int) else jnp.asarray(extent, jnp.float32)
        for extent in x.shape
    )


def numbers(
    op: str, mult: float, constraint: str | None, **shape: Any
) -> tuple[float, ...]:
    """Return the factors of an op: the output's, then those of the inputs.

    Raises:
        UnsupportedError: An extent that the rule integrates over is a symbol.
    """
    for key, extent in shape.items():
        if not isinstance(extent, (int, float)):
            msg = (
                f"the rule of {op} needs {key} as a number, and it is the symbol "
                f"{extent}; export with a fixed extent there"
            )
            raise UnsupportedError(msg)
    return shapes.numbers(op, float(mult), constraint, tuple(shape.items()))
