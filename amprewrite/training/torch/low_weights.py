"""Train weights that are stored in bfloat16, without float32 masters.

Any torch optimizer computes the step in float32, on copies of the weights that exist
only during the step; they are written back by stochastic rounding or with a residual.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from amprewrite.errors import UnsupportedError
from amprewrite.training.torch import _compat

# Rounding of float32 tensors to bfloat16: nearest, stochastic, or with a residual.
#
# Rounding to nearest loses an update below half of the weight's last bit: with 8 bits,
# below 1/512 to 1/256 of the weight. Stochastic rounding is unbiased; a residual
# carries the rounding error to the next step. Sources: Gupta et al., Deep Learning with
# Limited Numerical Precision (arXiv 1502.02551); Zamirai et al., Revisiting BFloat16
# Training (arXiv 2010.06192).

LOW = torch.bfloat16
"""The dtype of low weights: float16 has no range for moments and small weights."""

DROPPED = 16
"""Bits of a float32 that a bfloat16 drops: 23 - 7 of its mantissa."""


def stochastic(full: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return ``full`` rounded up or down, so that the mean over ``draws`` is ``full``.

    Values that bfloat16 represents are unchanged, infinities and NaN included. A value
    beyond its largest number becomes that number, not an infinity.

    Args:
        full: Float32.
        draws: Int32 of the same shape, uniform in [0, 2**16).
    """
    limit = torch.finfo(LOW).max
    held = torch.where(full.isfinite(), full.clamp(-limit, limit), full)
    bits = held.view(torch.int32)
    moved = bits + torch.where(full.isfinite(), draws, 0)  # carries into the kept bits
    cut = moved & -(1 << DROPPED)
    return torch.where(full.isfinite(), cut.view(torch.float32), full).to(LOW)


def split(full: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``full`` rounded to nearest, and the rounding error, both bfloat16.

    Their sum has at least 16 bits; the residual of an infinity or NaN is zero.

    Args:
        full: Float32.
    """
    near = full.to(LOW)
    left = full - near.to(torch.float32)
    return near, torch.where(left.isfinite(), left, 0).to(LOW)


def joined(near: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Return the float32 sum of the two parts from :func:`split`."""
    return near.to(torch.float32) + residual.to(torch.float32)


Rounding = Literal["nearest", "stochastic", "kahan"]
"""Rounding of the step; ``nearest`` loses small updates, the others do not."""

ROUNDINGS = ("nearest", "stochastic", "kahan")
MOMENTS = ("full", "low")


@dataclass(frozen=True)
class LostUpdates:
    """Statistics of the updates of low weights that rounding lost.

    Attributes:
        updates: Number of nonzero updates of a weight.
        unchanged: Number of those that left the stored weight and residual unchanged.
        shortfall: Share of the updates that is missing in the weights: 0 if they were
            applied as computed, 1 if none was. By projection: 1 - <applied, computed> /
            <computed, computed>. Stochastic rounding has 0 on average.
    """

    updates: int = 0
    unchanged: int = 0
    shortfall: float = 0.0

    @property
    def share(self) -> float:
        """Share of the updates that left the stored weight unchanged."""
        return self.unchanged / self.updates if self.updates else 0.0


class LowWeights:
    """Wrapper of an optimizer that steps bfloat16 parameters in float32.

    Attributes:
        optimizer: The optimizer; learning rate schedulers take it.
        rounding: Rounding of the weights when they are written back.
        moments: ``full``: the optimizer's state is float32; ``low``: its tensors of a
            weight's shape are bfloat16 too, rounded as the weights are.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rounding: Rounding = "stochastic",
        *,
        moments: Literal["full", "low"] = "full",
        seed: int = 0,
    ) -> None:
        """Wrap ``optimizer``.

        Args:
            optimizer: Any optimizer of torch but LBFGS, of low parameters.
            rounding: ``stochastic``; ``kahan``, with a bfloat16 residual for each
                weight; ``nearest``, which loses small updates.
            moments: Whether the optimizer's state is stored low too.
            seed: Seed of stochastic rounding; the same in all replicas of a model,
                which stay equal. Each part of a sharded weight has draws of its own.

        Raises:
            UnsupportedError: No such rounding, or the optimizer is LBFGS.
        """
        for value, known in ((rounding, ROUNDINGS), (moments, MOMENTS)):
            if value not in known:
                msg = f"no {value!r} for low weights; want {', '.join(known)}"
                raise UnsupportedError(msg)
        if isinstance(optimizer, LBFGS):
            msg = "LBFGS runs the model within its step, where weights are not low"
            raise UnsupportedError(msg)
        self.optimizer, self.rounding, self.moments = optimizer, rounding, moments
        self._seed, self._draws = seed, dict[str, torch.Generator]()
        self._residuals: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._counts: dict[torch.device, torch.Tensor] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the wrapped optimizer."""
        return _compat.groups(self.optimizer)

    @property
    def lost(self) -> LostUpdates:
        """Statistics of lost updates so far, in this process; waits for the device."""
        held = [counts.cpu() for counts in self._counts.values()]
        if not held:
            return LostUpdates()
        total = _compat.numbers(torch.stack(held).sum(0))
        updates, unchanged, applied, computed = total
        shortfall = 1 - applied / computed if computed else 0.0
        return LostUpdates(int(updates), int(unchanged), shortfall)

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step in float32 and write back in bfloat16.

        Args:
            closure: Called once before the step; its result is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            low = [p for p in self._low() if p.grad is not None]
            with self._in_full(low) as stepped:
                self.optimizer.step()
            for parameter, full in zip(low, stepped, strict=True):
                self._store(parameter, full.data)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without weights, from which a run continues bit by bit."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "rounding": self.rounding,
            "moments": self.moments,
            "residuals": [dict(self._residuals.get(p, {})) for p in self._low()],
            "draws": {part: g.get_state() for part, g in self._draws.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state from :meth:`state_dict`.

        Raises:
            UnsupportedError: It is of another rounding, or of an optimizer without one.
        """
        mine = (self.rounding, self.moments)
        theirs = (state_dict.get("rounding"), state_dict.get("moments"))
        if theirs != mine:
            msg = (
                f"the state is of rounding and moments {theirs}; this is {mine}: make "
                f"LowWeights with those of the state"
            )
            raise UnsupportedError(msg)
        low = list(self._low())
        with torch.no_grad(), self._in_full(low):
            # torch casts a state to the dtype of its parameter, here float32
            self.optimizer.load_state_dict(dict(state_dict["optimizer"]))
        for parameter in low if self.moments == "low" else ():
            for name, moment in self._moments(parameter):
                self.optimizer.state[parameter][name] = moment.to(LOW)
        self._residuals = {
            parameter: {name: t.to(parameter.device) for name, t in held.items()}
            for parameter, held in zip(
                self._low(), state_dict["residuals"], strict=True
            )
            if held
        }
        for part, state in state_dict["draws"].items():
            generator = torch.Generator(part.partition(" ")[0])
            self._draws[part] = generator.set_state(state)

    def _low(self) -> Iterator[nn.Parameter]:
        for group in self.param_groups:
            yield from (p for p in group["params"] if p.dtype == LOW)

    @contextmanager
    def _in_full(self, low: list[nn.Parameter]) -> Generator[list[nn.Parameter]]:
        """Replace ``low`` by float32 copies in the optimizer, for the context.

        The copies have the gradients and the optimizer state of ``low``, in float32.
        """
        full = [self._stand_in(parameter) for parameter in low]
        self._exchange(low, full)
        try:
            yield full
        finally:
            self._exchange(full, low)

    def _stand_in(self, parameter: nn.Parameter) -> nn.Parameter:
        weight = self._full(parameter, "weight", parameter.data)
        made = nn.Parameter(weight, requires_grad=parameter.requires_grad)
        made.grad = None if parameter.grad is None else parameter.grad.float()
        for name, moment in self._moments(parameter):
            full = self._full(parameter, name, moment)
            self.optimizer.state[parameter][name] = full
        return made

    def _exchange(self, old: list[nn.Parameter], new: list[nn.Parameter]) -> None:
        """Replace parameters ``old`` by ``new`` in the optimizer, with their state."""
        places = {id(one): other for one, other in zip(old, new, strict=True)}
        for group in self.param_groups:
            held = group["params"]
            held[:] = [places.get(id(p), p) for p in held]
        for one, other in zip(old, new, strict=True):
            if one in self.optimizer.state:
                self.optimizer.state[other] = self.optimizer.state.pop(one)

    def _moments(self, parameter: nn.Parameter) -> list[tuple[str, torch.Tensor]]:
        """Return the optimizer state of a weight's shape; step counts are left out."""
        state: Mapping[str, Any] = self.optimizer.state.get(parameter, {})
        return [
            (name, held)
            for name, held in state.items()
            if isinstance(held, torch.Tensor)
            and name != "step"
            and held.shape == parameter.shape
            and held.dtype in (LOW, torch.float32)
        ]

    def _full(
        self, parameter: nn.Parameter, name: str, held: torch.Tensor
    ) -> torch.Tensor:
        """Return a stored weight or moment in float32, with its residual added."""
        residual = self._residuals.get(parameter, {}).get(name)
        if residual is None or held.dtype != LOW:
            return held.to(torch.float32)
        return joined(held, residual)

    def _store(self, parameter: nn.Parameter, wanted: torch.Tensor) -> None:
        """Write a weight back, and its low state, and count lost updates."""
        before = self._full(parameter, "weight", parameter.data)
        low = self._rounded(parameter, "weight", wanted)
        _compat.local(parameter).copy_(_compat.local(low))
        after = self._full(parameter, "weight", parameter.data)
        self._count(*map(_compat.local, (before, wanted, after)))
        for name, moment in self._moments(parameter) if self.moments == "low" else ():
            low = self._rounded(parameter, name, moment)
            self.optimizer.state[parameter][name] = low

    def _rounded(
        self, parameter: nn.Parameter, name: str, full: torch.Tensor
    ) -> torch.Tensor:
        """Return ``full`` rounded to bfloat16, after storing its residual, if any."""
        if self.rounding == "nearest":
            return full.to(LOW)
        held = _compat.local(full)  # of other processes nothing is needed
        if self.rounding == "stochastic":
            draws = torch.randint(
                1 << DROPPED,
                held.shape,
                generator=self._draw(full),
                dtype=torch.int32,
                device=held.device,
            )
            return _compat.spread_as(stochastic(held, draws), full)
        low, residual = split(held)
        residuals = self._residuals.setdefault(parameter, {})
        residuals[name] = _compat.spread_as(residual, full)
        return _compat.spread_as(low, full)

    def _draw(self, full: torch.Tensor) -> torch.Generator:
        """Return the random generator of a tensor, one for each part of a DTensor."""
        part = _compat.part(full)
        name = " ".join(map(str, (full.device, *part)))
        if name not in self._draws:
            seed = self._seed
            for index in part:
                seed = (seed * 65_537 + index + 1) % 2**63
            self._draws[name] = torch.Generator(full.device).manual_seed(seed)
        return self._draws[name]

    def _count(
        self, before: torch.Tensor, wanted: torch.Tensor, after: torch.Tensor
    ) -> None:
        computed, applied = (wanted - before).double(), (after - before).double()
        moves = computed != 0
        numbers = (
            moves.sum(),
            (moves & (applied == 0)).sum(),
            (applied * computed).sum(),
            computed.square().sum(),
        )
        counts = torch.stack([number.double() for number in numbers])
        self._counts[before.device] = self._counts.get(before.device, 0) + counts
