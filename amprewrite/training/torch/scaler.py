"""A dynamic loss scale for torch: ``torch.amp.GradScaler`` with more checks.

The rule is :class:`amprewrite.training.state.ScaleRule`. The scale is a float32 scalar
on the device of the loss; the host reads it where it must decide something.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from amprewrite.errors import LossScaleError, NotCapturedError, UnsupportedError, warn
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Plan
from amprewrite.plan.facts import gradient_format, is_unit_scaled
from amprewrite.training import state
from amprewrite.training.state import advice
from amprewrite.training.torch import _compat, step_state
from amprewrite.training.torch.step_state import Buffers, evaluated

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


class GradScaler(torch.amp.GradScaler):
    """Loss scaler: scales losses, unscales gradients, skips steps that are not finite.

    A ``torch.amp.GradScaler``: the same calls, the same scales, the same
    ``state_dict``. In addition it names the parameter and raises when no smaller
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
        if enabled and device == "cuda" and not torch.cuda.is_available():
            msg = "GradScaler for cuda, which is not available: it is disabled"
            warn(msg)
            enabled = False
        rule = growth_factor, backoff_factor, growth_interval
        self._minimum = min(min_scale, init_scale)
        state.ScaleRule(*rule, self._minimum)  # refuses more than torch, by name
        # torch would warn of CUDA, and leave out the factors of a disabled one
        super().__init__("cpu", float(init_scale), *rule)
        self._device, self._enabled = device, enabled
        self._begun: WeakSet[Optimizer] = WeakSet()
        self._model, self._advised, self._unseen = model, False, 0
        self._buffers = Buffers(model) if enabled and model is not None else None

    @property
    def _rule(self) -> state.ScaleRule:
        factors = self._growth_factor, self._backoff_factor, self._growth_interval
        return state.ScaleRule(*factors, self._minimum)

    def scale(self, outputs: Any) -> Any:
        """Return ``outputs``, a tensor or a nest of iterables of them, times the scale.

        Raises:
            ValueError: An output is no tensor.
        """
        if not self._enabled:
            return outputs
        self._advise()
        scaled_tensor = super().scale

        def scaled(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return scaled_tensor(value)
            if hasattr(value, "__iter__"):
                nest, parts = isinstance(value, (list, tuple)), map(scaled, value)
                return type(value)(parts) if nest else parts
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
        if self._enabled:
            stage = self._per_optimizer_states[id(optimizer)]["stage"]
            if stage is not OptState.READY:
                done = "step" if stage is OptState.STEPPED else "unscale_"
                msg = (
                    f"unscale_() after {done}() for this optimizer; call update() "
                    f"before"
                )
                raise RuntimeError(msg)
        super().unscale_(optimizer)

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
        own = self._per_optimizer_states[id(optimizer)]
        if own["stage"] is OptState.STEPPED:
            msg = "step() after step() for this optimizer; call update() before"
            raise RuntimeError(msg)
        loss, call = evaluated(optimizer, args, kwargs)
        scale = self._check_scale_growth_tracker("step")[0]
        fused = _compat.takes_scale(optimizer)  # it unscales and skips in its kernel
        divisor = scale if own["stage"] is OptState.READY else None
        if divisor is not None:
            (self._check_inf_per_device if fused else self.unscale_)(optimizer)
        found = _total(own, scale.device)
        # torch 2.13: fused SGD that skips its first step keeps a momentum of
        # uninitialised memory; that step is skipped here, where the host waits
        waits = not fused or optimizer not in self._begun
        if waits and found.item():
            self._refuse_stuck(optimizer)
            result = None
        elif fused:
            self._begun.add(optimizer)
            own["fused"] = optimizer
            result = _compat.step_with_scale(optimizer, divisor, found, call)
        else:
            result = call()
        own["stage"] = OptState.STEPPED
        return result if loss is None else loss

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
        scale, tracker = self._check_scale_growth_tracker("update")
        states = self._per_optimizer_states.values()
        looked = [own for own in states if own["found_inf_per_device"]]
        skipped = [_total(own, scale.device) > 0 for own in looked]
        self._look()
        if isinstance(new_scale, torch.Tensor):
            scale.copy_(new_scale.detach().reshape(()))
        elif new_scale is not None:
            scale.fill_(new_scale)
        elif not skipped:
            msg = "update() before any step() or unscale_(): nothing was looked at"
            raise RuntimeError(msg)
        else:
            finite = ~torch.stack(skipped).any()
            new = self._rule.step(scale.double(), tracker, finite, torch.where)
            scale.copy_(new[0])
            tracker.copy_(new[1])
        if self._buffers is not None and skipped:
            self._buffers.settle(torch.stack(skipped).all())
        self._per_optimizer_states.clear()

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor after ``growth_interval`` finite steps in a row."""
        replace(self._rule, growth=new_factor)
        super().set_growth_factor(new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor after a step that was not finite."""
        replace(self._rule, backoff=new_factor)
        super().set_backoff_factor(new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of finite steps in a row after which the scale grows."""
        replace(self._rule, interval=new_interval)
        super().set_growth_interval(new_interval)

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
        replace(
            self._rule,
            growth=state_dict["growth_factor"],
            backoff=state_dict["backoff_factor"],
            interval=state_dict["growth_interval"],
        )
        super().load_state_dict(dict(state_dict))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: numbers, no tensors.

        Raises:
            RuntimeError: In the middle of a step.
        """
        if self._per_optimizer_states:
            msg = "a GradScaler is pickled after update(), not between step and update"
            raise RuntimeError(msg)
        none = dict.fromkeys(("_begun", "_model", "_buffers"))
        return {**super().__getstate__(), **none}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state; optimizers are new in another process."""
        super().__setstate__({**state, "_begun": WeakSet[Optimizer]()})

    def _advise(self) -> None:
        """Warn once if no scale is needed, or if it does harm: beside unit scaling."""
        if self._model is None or self._advised:
            return
        advice = advice_for(self._model)
        self._advised = advice is not None
        if advice:
            warn(advice)

    # Methods of torch's class, called by its other methods.

    def _check_scale_growth_tracker(
        self, funcname: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale and the number of finite steps in a row.

        Raises:
            RuntimeError: No loss was scaled, so that there is no device for them.
        """
        if self._scale is None or self._growth_tracker is None:
            msg = (
                f"{funcname}() before scale(): call scaler.scale(loss).backward() first"
            )
            raise RuntimeError(msg)
        return self._scale, self._growth_tracker

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,  # noqa: FBT001  # as torch's
    ) -> dict[torch.device, torch.Tensor]:
        """Multiply all gradients; return for each device if one is not finite."""
        if self._model is not None:
            step_state.check_owner(optimizer, self._model)
        found: dict[torch.device, torch.Tensor] = {}
        with torch.no_grad():
            for held in step_state.by_kind(optimizer, half=allow_fp16):
                device = held[0].device
                one = found.setdefault(device, found_inf.to(device, copy=True))
                _compat.unscale(held, inv_scale.to(device), one)
        return found

    def _refuse_stuck(self, optimizer: Optimizer) -> None:
        """Raise LossScaleError if no smaller scale can help a step not finite."""
        scale = self.get_scale()
        if self._rule.is_stuck(scale, finite=False):
            name = step_state.first_not_finite(optimizer, self._model)
            raise LossScaleError(state.stuck(scale, name), name)

    def _look(self) -> None:
        """Check, every :data:`LOOK_EVERY` updates, the steps of fused optimizers."""
        states = self._per_optimizer_states.values()
        fused = [own for own in states if "fused" in own]
        self._unseen += bool(fused)
        if self._unseen < LOOK_EVERY:
            return
        self._unseen = 0
        for own in fused:
            if any(found.item() for found in own["found_inf_per_device"].values()):
                self._refuse_stuck(own["fused"])


def _total(own: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """Return a number above 0 if a gradient of an optimizer is not finite.

    Raises:
        RuntimeError: No parameter of the optimizer has one.
    """
    found = own["found_inf_per_device"].values()
    if not found:
        msg = (
            "step() of an optimizer without gradients: no parameter of it has one; "
            "call backward() before, on a loss of these parameters"
        )
        raise RuntimeError(msg)
    return torch.stack([flag.to(device) for flag in found]).sum()
