"""Scales of one tensor: plain data."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scale:
    """Scales of one tensor, in float64.

    Attributes:
        std: Standard deviation of the finite elements: logits may be masked by -inf.
        rms: Root mean square of these; both are NaN where there are none.
        largest: Largest absolute value of all, infinite or NaN if one is.
        zeros: Share of elements that are zero.
    """

    std: float
    rms: float
    largest: float
    zeros: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Scale":
        """Return the scales of an array; of an empty one all are 0."""
        x = np.ravel(values).astype(np.float64)
        if not x.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        largest, zeros = float(np.abs(x).max()), float((x == 0).mean())
        finite = x[np.isfinite(x)]
        if not finite.size:
            return cls(float("nan"), float("nan"), largest, zeros)
        rms = float(np.sqrt(np.square(finite).mean()))
        return cls(float(finite.std()), rms, largest, zeros)

    def __str__(self) -> str:
        """Return the four numbers in columns."""
        return f"{self.std:9.3g} {self.rms:9.3g} {self.largest:9.3g} {self.zeros:6.1%}"


@dataclass(frozen=True)
class Tracked:
    """One tensor of a run.

    Attributes:
        name: Op that made it, numbered; or the name of a parameter.
        where: Path of the module in torch, source line in JAX; empty if unknown.
        shape: Its extents.
        forward: Scales of its values.
        backward: Scales of its gradient; None where there is none.
        parameter: Whether it is a parameter of the model.
        scaled: Name of the tensor that this one is but for a factor of unit scaling,
            empty where that one has no row; None of all other tensors.
    """

    name: str
    where: str
    shape: tuple[int, ...]
    forward: Scale
    backward: Scale | None
    parameter: bool = False
    scaled: str | None = None


def base_name(name: str) -> str:
    """Return a name without its number."""
    base, _, number = name.rpartition("_")
    return base if base and number.isdigit() else name
