"""A dynamic loss scale for torch, with the interface of ``torch.amp.GradScaler``.

The rule is :class:`amprewrite.training.state.ScaleRule`. The scale is a float32 scalar
on the device of the loss; the host reads it where it must decide something.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from amprewrite.errors import LossScaleError, NotCapturedError, UnsupportedError, warn
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Plan
from amprewrite.plan.facts import gradient_format, is_unit_scaled
from amprewrite.training import state
from amprewrite.training.state import advice
from amprewrite.training.torch import _compat, step_state
from amprewrite.training.torch.step_state import Buffers, StepState, evaluated

# The advice on a loss scale for the converted parts of a torch model.


def advice_for(model: nn.Module) -> str | None:
    """Return a hint about the loss scale of ``model``; empty if there is none.

    A scale beside a unit-scaled part is one; that it is not needed is one where no part
    needs it. None if no converted part is known: there is none, or before the first
    call.
    """
    plans = list(_plans(model))
    if not plans:
        return None
    for plan in plans:
        if is_unit_scaled(plan):
            found = advice(gradient_format(plan), scales=True, unit_scaled=True)
            if found:
                return found
    hints = {advice(gradient_format(plan), scales=True) for plan in plans}
    return "" if "" in hints else min(hints)


def _plans(model: nn.Module) -> Iterator[Plan]:
    """Yield the plan of each converted part of ``model`` that ran."""
    for part in model.modules():
        programs = programs_of(part)
        held = part if isinstance(part, ConvertedModule) else programs
        if held is not None:
            try:
                yield held.plan
            except NotCapturedError:  # nothing is known before the first call
                continue


MIN_SCALE = 2.0**-14
"""Least scale: the smallest normal float16; below it, a loss of 1 loses bits."""

LOOK_EVERY = 100
"""Number of updates between two looks at the results of fused optimizers.

The host does not wait for them otherwise.
"""


class GradScaler:
    """Loss scaler: scales losses, unscales gradients, skips steps that are not finite.

    A replacement for ``torch.amp.GradScaler``: the same calls, the same scales, the
    same ``state_dict``. In addition it names the parameter and raises when no smaller
    scale can help, accepts closures, and with ``model=`` refuses an optimizer of other
    parameters.

    A step that is not finite changes neither parameters nor the optimizer's state, and
    with ``model=`` it restores the buffers that the forward pass changed, such as
    running statistics. (torch.amp leaves them changed.)
    """

    def __init__(  # noqa: PLR0913  # as torch's, and two by keyword
        self,
        device: str = "cuda",
        init_scale: float = state.INITIAL_SCALE,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,  # noqa: FBT001, FBT002  # as torch's
        *,
        model: nn.Module | None = None,
        min_scale: float = MIN_SCALE,
    ) -> None:
        """Set the initial scale, and the rule that changes it.

        Args:
            device: Device type of the loss; without CUDA, ``"cuda"`` disables.
            init_scale: The first scale.
            growth_factor: Factor after ``growth_interval`` finite steps in a row.
            backoff_factor: Factor after a step that was not finite.
            growth_interval: Number of finite steps in a row after which it grows.
            enabled: Whether to scale; False passes losses and steps through unchanged.
            model: The model that is called and trained; errors name its parameters.
            min_scale: Least scale: a step that is not finite at it raises
                LossScaleError instead of reducing the scale.

        Raises:
            ValueError: A number is out of its range.
        """
        self._enabled = enabled
        if enabled and device == "cuda" and not torch.cuda.is_available():
            msg = "GradScaler for cuda, which is not available: it is disabled"
            warn(msg)
            self._enabled = False
        minimum = min(min_scale, init_scale)
        self._rule = state.ScaleRule(
            growth_factor, backoff_factor, growth_interval, minimum
        )
        self._first = (float(init_scale), 0)
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None
        self._states: dict[int, StepState] = {}
        self._begun: WeakSet[Optimizer] = WeakSet()
        self._model, self._advised, self._unseen = model, False, 0
        watch = model if self._enabled else None
        self._buffers = None if watch is None else Buffers(watch)

    def scale(self, outputs: Any) -> Any:
        """Return ``outputs``, a tensor or a nest of iterables of them, times the scale.

        Raises:
            ValueError: An output is no tensor.
        """
        if not self._enabled:
            return outputs
        self._advise()
        copies: dict[torch.device, torch.Tensor] = {}

        def scaled(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if value.device not in copies:
                    copies[value.device] = self._scale_on(value.device)
                return value * copies[value.device]
            if _is_iterable(value):
                parts = map(scaled, value)
                return type(value)(parts) if isinstance(value, (list, tuple)) else parts
            msg = (
                f"cannot scale a {type(value).__name__}; want a tensor or an iterable "
                f"of tensors"
            )
            raise ValueError(msg)

        return scaled(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale, to clip or read them.

        Raises:
            RuntimeError: It was called or stepped already since the last update, or no
                loss was scaled.
            ValueError: A gradient is float16.
            OptimizerError: The optimizer holds parameters of another model.
        """
        if not self._enabled:
            return
        own = self._state_of(optimizer)
        if own.unscaled or own.stepped:
            done = "step" if own.stepped else "unscale_"
            msg = f"unscale_() after {done}() for this optimizer; call update() before"
            raise RuntimeError(msg)
        scale = self._tensors("unscale_")[0]
        self._check(own, scale.double().reciprocal().float())
        own.unscaled = True

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step ``optimizer`` if its gradients, unscaled, are finite.

        A ``closure`` is called once, before the step; it has to scale its loss.

        Returns:
            The result of the optimizer or the closure; None if the step was skipped.

        Raises:
            RuntimeError: It was called already since the last update, no loss was
                scaled, or no parameter has a gradient.
            LossScaleError: The scale is at its minimum and gradients are not finite.
            OptimizerError: The optimizer holds parameters of another model.
            UnsupportedError: The optimizer calls its closure several times, or takes
                a ``grad_scaler``.
        """
        if not self._enabled:
            return _compat.step(optimizer)(*args, **kwargs)
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            msg = (
                f"{type(optimizer).__name__}.step takes a grad_scaler, the old way of "
                f"fused optimizers; use torch.amp.GradScaler with it"
            )
            raise UnsupportedError(msg)
        own = self._state_of(optimizer)
        if own.stepped:
            msg = "step() after step() for this optimizer; call update() before"
            raise RuntimeError(msg)
        loss, call = evaluated(optimizer, args, kwargs)
        self._tensors("step")
        fused = _compat.takes_scale(optimizer)
        given: Any = (self._step_fused if fused else self._step)(own, call)
        own.stepped = True
        return given if loss is None else loss

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adjust the scale after the steps since the last update.

        Args:
            new_scale: Scale to set instead; a number or a tensor of one element.

        Raises:
            RuntimeError: No gradients were checked since the last update.
            LossScaleError: As :meth:`step`, for fused optimizers.
        """
        if not self._enabled:
            return
        scale, tracker = self._tensors("update")
        found = [f for own in self._states.values() for f in own.found.values()]
        self._look()
        if new_scale is not None:
            _fill(scale, new_scale)
        elif not found:
            msg = "update() before any step() or unscale_(): nothing was looked at"
            raise RuntimeError(msg)
        else:
            total = torch.stack([f.to(scale.device) for f in found]).sum()
            new, count = self._rule.step(
                scale.double(), tracker, total == 0, torch.where
            )
            scale.copy_(new)
            tracker.copy_(count)
        if self._buffers is not None and found:
            self._buffers.settle(self._all_skipped(scale.device))
        self._states = {}

    def _all_skipped(self, device: torch.device) -> torch.Tensor:
        """Return whether every optimizer skipped its step."""
        looked = [own.found.values() for own in self._states.values() if own.found]
        sums = [torch.stack([f.to(device) for f in found]).sum() for found in looked]
        return (torch.stack(sums) > 0).all()

    def get_scale(self) -> float:
        """Return the scale; 1.0 if disabled. Waits for the device."""
        if not self._enabled:
            return 1.0
        return self._first[0] if self._held is None else self._held[0].item()

    def get_growth_factor(self) -> float:
        """Return the factor after ``growth_interval`` finite steps in a row."""
        return self._rule.growth

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor after ``growth_interval`` finite steps in a row."""
        self._rule = replace(self._rule, growth=new_factor)

    def get_backoff_factor(self) -> float:
        """Return the factor after a step that was not finite."""
        return self._rule.backoff or 1 / self._rule.growth

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor after a step that was not finite."""
        self._rule = replace(self._rule, backoff=new_factor)

    def get_growth_interval(self) -> int:
        """Return the number of finite steps in a row after which the scale grows."""
        return self._rule.interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of finite steps in a row after which the scale grows."""
        self._rule = replace(self._rule, interval=new_interval)

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch.amp.GradScaler has it; empty if disabled."""
        if not self._enabled:
            return {}
        tracker = self._first[1] if self._held is None else self._held[1].item()
        return {
            "scale": self.get_scale(),
            "growth_factor": self.get_growth_factor(),
            "backoff_factor": self.get_backoff_factor(),
            "growth_interval": self.get_growth_interval(),
            "_growth_tracker": int(tracker),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this class or of torch.amp.GradScaler.

        Raises:
            RuntimeError: It is empty: of a scaler that was disabled.
        """
        if not self._enabled:
            return
        if not state_dict:
            msg = (
                "the state is empty, as that of a disabled GradScaler is; make this "
                "one with enabled=False, or do not load the state"
            )
            raise RuntimeError(msg)
        self._rule = replace(
            self._rule,
            growth=state_dict["growth_factor"],
            backoff=state_dict["backoff_factor"],
            interval=state_dict["growth_interval"],
        )
        self._first = (state_dict["scale"], state_dict["_growth_tracker"])
        if self._held is not None:
            for tensor, number in zip(self._held, self._first, strict=True):
                tensor.fill_(number)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: numbers, no tensors.

        Raises:
            RuntimeError: In the middle of a step.
        """
        if self._states:
            msg = "a GradScaler is pickled after update(), not between step and update"
            raise RuntimeError(msg)
        saved = self.state_dict()
        first = (saved["scale"], saved["_growth_tracker"]) if saved else self._first
        kept = {k: v for k, v in self.__dict__.items() if k != "_begun"}
        none = {"_held": None, "_model": None, "_buffers": None}
        return {**kept, "_first": first, **none}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore a pickled state; optimizers are new in another process."""
        self.__dict__.update(pickled, _begun=WeakSet[Optimizer]())

    def _advise(self) -> None:
        """Warn once if no scale is needed, or if it does harm: beside unit scaling."""
        if self._model is None or self._advised:
            return
        advice = advice_for(self._model)
        self._advised = advice is not None
        if advice:
            warn(advice)

    def _state_of(self, optimizer: Optimizer) -> StepState:
        return self._states.setdefault(id(optimizer), StepState(optimizer))

    def _tensors(self, caller: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale and the number of finite steps in a row.

        Raises:
            RuntimeError: No loss was scaled, so that there is no device for them.
        """
        if self._held is None:
            msg = f"{caller}() before scale(): call scaler.scale(loss).backward() first"
            raise RuntimeError(msg)
        return self._held

    def _scale_on(self, device: torch.device) -> torch.Tensor:
        if self._held is None:
            scale, tracker = self._first
            self._held = (
                torch.full((), scale, dtype=torch.float32, device=device),
                torch.full((), tracker, dtype=torch.int32, device=device),
            )
        return self._held[0].to(device, non_blocking=True)

    def _check(self, own: StepState, inverse: torch.Tensor | None) -> None:
        """Record whether all gradients are finite, and multiply them by ``inverse``."""
        if self._model is not None:
            step_state.check_owner(own.optimizer, self._model)
        with torch.no_grad():
            for held in step_state.by_kind(own.optimizer, half=inverse is None):
                device = held[0].device
                found = own.found.setdefault(device, torch.zeros((), device=device))
                by = found.new_ones(()) if inverse is None else inverse.to(device)
                _compat.unscale(held, by, found)

    def _step(self, own: StepState, call: Callable[[], Any]) -> Any:
        if not own.unscaled:
            self.unscale_(own.optimizer)
        own.need_gradients()
        if any(found.item() for found in own.found.values()):
            self._refuse_stuck(own.optimizer)
            return None
        return call()

    def _step_fused(self, own: StepState, call: Callable[[], Any]) -> Any:
        """Step with an optimizer that unscales and skips in its own kernel."""
        scale = self._tensors("step")[0]
        if not own.unscaled:
            self._check(own, None)
        own.need_gradients()
        found = torch.stack([f.to(scale.device) for f in own.found.values()]).sum()
        if own.optimizer not in self._begun:
            # torch 2.13: fused SGD that skips its first step keeps a momentum of
            # uninitialised memory; that step is skipped here, where the host waits
            if found.item():
                self._refuse_stuck(own.optimizer)
                return None
            self._begun.add(own.optimizer)
        given = None if own.unscaled else scale
        own.fused = True
        return _compat.step_with_scale(own.optimizer, given, found, call)

    def _refuse_stuck(self, optimizer: Optimizer) -> None:
        """Raise LossScaleError if no smaller scale can help a step not finite."""
        scale = self.get_scale()
        if self._rule.is_stuck(scale, finite=False):
            name = step_state.first_not_finite(optimizer, self._model)
            raise LossScaleError(state.stuck(scale, name), name)

    def _look(self) -> None:
        """Check, every :data:`LOOK_EVERY` updates, the steps of fused optimizers."""
        fused = [own for own in self._states.values() if own.fused]
        self._unseen += bool(fused)
        if self._unseen < LOOK_EVERY:
            return
        self._unseen = 0
        for own in fused:
            if any(found.item() for found in own.found.values()):
                self._refuse_stuck(own.optimizer)


def _is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(value, Iterable)


def _fill(scale: torch.Tensor, new: float | torch.Tensor) -> None:
    if isinstance(new, torch.Tensor):
        scale.copy_(new.detach().reshape(()))
    else:
        scale.fill_(new)
