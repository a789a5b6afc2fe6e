"""Lost updates of any optimizer of torch: each step is taken a second time, exactly.

A weight that is stored low shows no update that its rounding lost. So the update is
computed by a copy of the optimizer on float64 copies of weights, gradients and state.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from amprewrite.dtypes import format_of
from amprewrite.errors import ArgumentError, OptimizerError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.training.lost import UpdateCounts, count_lost, together
from amprewrite.training.torch import _compat


class UpdateWatch(ExitStack):
    """Counter of lost updates, from :func:`lost_updates`; also a context manager.

    ``close()`` detaches it from the optimizer; counts stay.

    Attributes:
        steps: Counts of each step that was looked at.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        format_name: str | None,
        names: Mapping[int, str],
        every: int,
    ) -> None:
        """Attach to ``optimizer``."""
        super().__init__()
        self.steps: list[UpdateCounts] = []
        self._optimizer, self._format = optimizer, format_name
        self._names, self._every = names, every
        self._calls = 0
        self._twin: _Twin | None = None
        self.callback(optimizer.register_step_pre_hook(self._before).remove)
        self.callback(optimizer.register_step_post_hook(self._after).remove)

    @property
    def total(self) -> UpdateCounts:
        """Counts of all steps together."""
        return together(self.steps)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Copy weights and state; without a closure, take the step at once."""
        counted, self._calls = self._calls % self._every == 0, self._calls + 1
        self._twin = _Twin(optimizer, self._names) if counted else None
        if self._twin is not None and not any((*args[1:], kwargs.get("closure"))):
            self._twin.take_step()

    def _after(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        twin, self._twin = self._twin, None
        if twin is not None:
            twin.take_step()
            self.steps.append(twin.counts(self._format))


class _Twin:
    """Copy of an optimizer in float64."""

    def __init__(self, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        self.held = [
            (names.get(id(p)) or _name(group, number, index), p)
            for number, group in enumerate(_compat.groups(optimizer))
            for index, p in enumerate(group["params"])
        ]
        self.before = {name: p.detach().clone() for name, p in self.held}
        self.wide = {name: _wide(p) for name, p in self.held}
        pairs = {id(p): self.wide[name] for name, p in self.held}
        self.twin = _compat.twin_of(optimizer, pairs)
        for p in self.wide.values():
            for name, held in list(self.twin.state.get(p, {}).items()):
                if isinstance(held, torch.Tensor) and held.shape == p.shape:
                    self.twin.state[p][name] = _doubled(held)
        self.taken = False

    def take_step(self) -> None:
        """Take the step with the gradients of the model, once."""
        if self.taken:
            return
        self.taken = True
        for name, p in self.held:
            self.wide[name].grad = None if p.grad is None else _doubled(p.grad)
        with fork_rng(range(torch.cuda.device_count())), torch.no_grad():
            _compat.bare_step(self.twin)

    def counts(self, format_name: str | None) -> UpdateCounts:
        """Return the counts of the step, of the float parameters with a gradient."""
        found: dict[str, Any] = {}
        for name, p in self.held:
            if p.grad is None or not p.is_floating_point():
                continue
            before = _compat.local(self.before[name]).double().cpu().numpy()
            after = _compat.local(self.wide[name].detach()).cpu().numpy()
            stored = format_name or str(p.dtype).removeprefix("torch.")
            found[name] = count_lost(before, after - before, stored)
        return UpdateCounts(found)


def _name(group: Mapping[str, Any], number: int, index: int) -> str:
    """Return the name of a parameter, as the optimizer knows it, else its place."""
    names = group.get("param_names")
    return str(names[index]) if names else f"{number}.{index}"


def _wide(p: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(_doubled(p.detach()).clone(), requires_grad=p.requires_grad)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double() if x.is_floating_point() else x.detach()


def lost_updates(
    optimizer: Optimizer,
    format: str | None = None,  # noqa: A002  # the word of the formats
    *,
    model: nn.Module | None = None,
    every: int = 1,
) -> UpdateWatch:
    """Count the updates of an optimizer that the format of the weights loses.

    Each step is also taken by a copy of the optimizer in float64; the step itself, its
    state and the random numbers stay as they are. That costs three times the memory of
    weights and state in float64 during the step, a step in float64, and a copy of
    weights and updates to the host. :class:`LowWeights` counts its own lost updates,
    in ``lost``.

    Args:
        optimizer: Any optimizer of torch but LBFGS.
        format: Name of the format to ask about, such as ``float16``, for weights that
            are stored in another one; None is the dtype of each weight.
        model: The model, to name its parameters; without it they are named as in the
            optimizer, or by group and index.
        every: Look at each ``every``-th step, beginning with the first.

    Returns:
        A counter, attached until ``close()``, or the end of a ``with`` block: ``steps``
        has the counts of each step, ``total`` of all.

    Raises:
        ArgumentError: ``every`` is below 1.
        OptimizerError: ``model`` has a parameter of none of its groups alone: all are
            of another model.
        PromotionError: There is no such format.
        UnsupportedError: The optimizer is LBFGS.
    """
    if every < 1:
        raise ArgumentError(f"every={every}; want 1 or more: each step, or each N-th")
    if format is not None:
        format_of(format)
    if isinstance(optimizer, LBFGS):
        msg = (
            "LBFGS runs the model within its step, so that the step cannot be taken "
            "twice; want another optimizer"
        )
        raise UnsupportedError(msg)
    names = {} if model is None else {id(p): n for n, p in model.named_parameters()}
    held = [p for group in _compat.groups(optimizer) for p in group["params"]]
    if model is not None and not any(id(p) in names for p in held):
        msg = (
            f"the optimizer holds none of the parameters of model="
            f"{type(model).__name__}; want the model that it trains"
        )
        raise OptimizerError(msg)
    return UpdateWatch(optimizer, format, names, every)
