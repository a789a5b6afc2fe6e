"""A precision plugin for Lightning's Trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from amprewrite.dispatch import Asked
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.convert import convert_in_place
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.derived.in_place import restore_in_place
from amprewrite.plan import Plan
from amprewrite.policy import PolicyLike, Rule, load_policy
from amprewrite.training.torch import GradScaler


class AmpRewritePrecision(Precision):
    """Plugin by which a Trainer runs a LightningModule converted by ``amprewrite``.

    ``Trainer(plugins=[AmpRewritePrecision("bf16")])`` takes the place of
    ``precision="bf16-mixed"``. While the Trainer runs, the module is a converted one:
    ``self(x)`` and the parts that a step calls (``self.net(x)``) run their programs,
    for each kind of call and mode; the rest of the step, such as its loss, runs as it
    is written. Parameters, optimizer states and checkpoints stay float32. When the
    Trainer is done, the module is plain again.

    With a policy whose low dtype is float16 the loss is scaled: gradients are unscaled
    before they are clipped, steps with gradients that are not finite are skipped, and
    the scale is part of the checkpoint.

    Attributes:
        policy: The policy.
        overrides: Rules tried before those of the policy.
        scaler: The loss scaler; None without one.
        precision: Lightning's name for a run of this kind, as loggers write it.
    """

    def __init__(
        self,
        policy: PolicyLike = "bf16",
        *,
        overrides: Sequence[Rule | Mapping[str, object]] = (),
        placement: str | None = None,
        scaler: GradScaler | torch.amp.GradScaler | None = None,
    ) -> None:
        """Take the policy; see :func:`amprewrite.convert`.

        Args:
            policy: Name or path of a policy, a dtype, or a Policy.
            overrides: Rules tried before those of the policy.
            placement: ``promote`` or ``optimal``; None is ``promote``.
            scaler: Loss scaler to use; None makes one for float16.

        Raises:
            PolicyError: The policy has mistakes.
            UnsupportedError: A scaler is given with a policy that needs none.
        """
        super().__init__()
        self.policy = load_policy(policy)
        self.overrides, self.placement = tuple(overrides), placement
        scales = self.policy.low == "float16"
        if scaler is not None and not scales:
            msg = (
                f"a loss scaler is given with policy {self.policy.name}, whose low "
                f"dtype is {self.policy.low or 'none'}; want one for float16 alone"
            )
            raise UnsupportedError(msg)
        # The device says whether there is one to scale on: there always is the host.
        self.scaler = GradScaler("cpu") if scales and scaler is None else scaler
        self.precision = "16-mixed" if scales else "bf16-mixed"
        self._plans: tuple[Plan, ...] = ()
        self._module: nn.Module | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Plans of all programs, of the module and its parts, of this or the last run.

        In the order of their captures.
        """
        if self._module is None:
            return self._plans
        programs = programs_of(self._module)
        if programs is None:
            return ()
        return tuple(p for program in programs.shared.programs for p in program.plans)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Convert ``module`` itself, until :meth:`teardown`; one that is stays so.

        Raises:
            PolicyError: An override has mistakes.
            UnsupportedError: The module is wrapped for several processes.
        """
        if programs_of(module) is None:
            asked = Asked(
                module, self.policy, None, None, self.overrides, None, self.placement
            )
            request = asked.request(None)
            convert_in_place(module, replace(request, training=True))
            self._module = module
        return module

    def teardown(self) -> None:
        """Make the module plain again, and keep its plans."""
        if self._module is not None:
            self._plans = self.plans
            restore_in_place(self._module)
            self._module = None

    def pre_backward(self, tensor: torch.Tensor, module: LightningModule) -> Any:
        """Return the loss, scaled for float16."""
        if self.scaler is not None:
            tensor = self.scaler.scale(tensor)
        return super().pre_backward(tensor, module)

    def optimizer_step(
        self,
        optimizer: Any,
        model: LightningModule,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> Any:
        """Run the closure, unscale, clip, and step if the gradients are finite."""
        if self.scaler is None:
            return super().optimizer_step(optimizer, model, closure, **kwargs)
        result = closure()
        # A step that returned None ran no backward pass: there is nothing to unscale.
        skips = result is None and model.automatic_optimization
        if not skips:
            self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        if skips:
            return result
        stepped = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loss scaler; empty without one."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the loss scaler, if there is one."""
        if self.scaler is not None and state_dict:
            self.scaler.load_state_dict(state_dict)
