"""Scales of every tensor of a model, forward and backward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.unit_scaling.validity import load_for


@dataclass(frozen=True)
class Scale:
    """Scales of one tensor, in float64.

    Attributes:
        std: Standard deviation.
        rms: Root mean square.
        largest: Largest absolute value.
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
        rms = float(np.sqrt(np.square(x).mean()))
        return cls(float(x.std()), rms, float(np.abs(x).max()), float((x == 0).mean()))

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
    """

    name: str
    where: str
    shape: tuple[int, ...]
    forward: Scale
    backward: Scale | None


@dataclass(frozen=True)
class Tracks:
    """All float tensors of a run, parameters first, then in the order of the run.

    Attributes:
        rows: The tensors.
    """

    rows: tuple[Tracked, ...]

    def __getitem__(self, name: str) -> Tracked:
        """Return the tensor of that name."""
        found = {row.name: row for row in self.rows}
        return found[name]

    def __str__(self) -> str:
        """Return a table, a row for each tensor."""
        columns = f"{'std':>9} {'rms':>9} {'max':>9} {'zeros':>6}"
        wide = max((len(row.name) for row in self.rows), default=0)
        lines = [f"{'':{wide}} {columns} | {columns} of the gradient"]
        for row in self.rows:
            backward = "" if row.backward is None else str(row.backward)
            where = f" {row.where}" if row.where else ""
            lines.append(
                f"{row.name:{wide}} {row.forward} | {backward:{len(columns)}}{where}"
            )
        return "\n".join(line.rstrip() for line in lines)


def track_scales(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Tracks:
    """Run a model forward and backward, and return the scales of every float tensor.

    Every float output gets a gradient of unit Gaussian numbers, a scalar gets 1.
    Parameters, buffers and the state of random numbers stay as they are. In torch each
    call of a function is a tensor, views left out; in JAX each equation of the program,
    with functions under ``jit``, loops and branches as one.

    Args:
        model: A ``torch.nn.Module``, or a function of JAX whose first argument holds
            the parameters, or a JAX module that is a pytree of its own.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        ArgumentError: ``model`` is no such model, or has no float output.
    """
    run = load_for(model, "tracking").track
    return Tracks(tuple(run(model, tuple(args), dict(kwargs or {}))))


def numbered(name: str, counts: dict[str, int]) -> str:
    """Return a name, with the number of its use from the second on."""
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
