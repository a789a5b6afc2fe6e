"""Tensors of one run of a model, forward and backward, as a framework shows them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Observed(NamedTuple):
    """One float tensor of a run.

    Attributes:
        name: Name of a parameter; or of the function that made the tensor, numbered.
        path: Path of the module in torch, source line in JAX; empty if unknown.
        parameter: Whether it is a parameter of the model.
        gradient: Whether the values are those of its gradient.
        values: Function that returns the values, in float64, on the host; it is valid
            while the tensor is observed.
    """

    name: str
    path: str
    parameter: bool
    gradient: bool
    values: Callable[[], NDArray[Any]]


Look = Callable[[Observed], None]
"""Consumer of tensors: parameters first, then others in the order of the run."""


def numbered(name: str, counts: dict[str, int]) -> str:
    """Return a name, with the number of its use from the second on."""
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
