"""Lower a dynamo graph of torch functions to the ATen level that export gives.

Higher-order ops keep their place: an activation checkpoint's body is lowered too, the
bodies of a custom ``autograd.Function`` stay as the user wrote them.
"""

from typing import Any, Self

import torch
from torch.fx import GraphModule, Interpreter, traceback

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.rnn_cells import FUNCTIONS
from amprewrite.frameworks.torch_fx.compat import private

CHECKPOINTS = frozenset(("tag_activation_checkpoint",))
"""Higher-order ops that stand for torch.utils.checkpoint."""


def checkpoint_region(body: GraphModule, *args: Any) -> Any:
    """Run ``body`` under activation checkpointing, as the model asks."""
    return private.checkpointed(body, *args)


def lower(module: GraphModule, inputs: list[Any]) -> GraphModule:
    """Return ``module`` at the ATen level, before decomposition if it can be.

    Args:
        module: A graph of torch functions and methods, as dynamo gives it.
        inputs: Fake values of its placeholders.
    """

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta(), _Lowering(module) as lowering:
            return lowering.run(*args)

    if private.uses_transforms(module):
        traced = private.trace_below_transforms(run, tuple(inputs))
        traced.graph.eliminate_dead_code()  # sizes of values inside the transforms
        return traced
    return private.trace_pre_dispatch(run, tuple(inputs))


class _Lowering(Interpreter):
    """Runs a graph under the tracer; records higher-order ops itself."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.regions: list[torch.autocast] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the regions that a failure leaves open."""
        while self.regions:
            self.regions.pop().__exit__(None, None, None)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is private.DATA_ATTRIBUTE:
            return args[0].detach()
        if target in private.INFERENCE:
            return _switch_gradients(
                entered=target is private.INFERENCE[0], given=args[0]
            )
        if ops.region_name(target) in ops.AUTOCAST_SPAN:
            return self._autocast(args)
        if target in FUNCTIONS and args[0].device.type == "cpu":
            return FUNCTIONS[target](*args, **kwargs)
        if private.is_higher_order(target):
            return self._higher_order(target, args, kwargs)
        return super().call_function(target, args, kwargs)

    def _higher_order(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record a call that has bodies; lower that of an activation checkpoint."""
        if target.name() not in CHECKPOINTS:
            run = super().call_function
            return private.record_higher_order(
                target, args, kwargs, lambda: run(target, args, kwargs)
            )
        body, *operands = args
        with private.untraced():
            lowered = lower(body, operands)
        return private.record_higher_order(
            checkpoint_region, (lowered, *operands), {}, lambda: lowered(*operands)
        )

    def _autocast(self, args: Any) -> Any:
        """Open or close a region of autocast, for the dtypes of the ops in it too.

        Called as dynamo does, what opens one is recorded and opens nothing.
        """
        if isinstance(args[0], torch.autocast):
            return self.regions.pop().__exit__(None, None, None)
        region = torch.autocast(*args)
        self.regions.append(region)
        return region.__enter__()


def _switch_gradients(*, entered: bool, given: bool) -> bool:
    """Enter or leave a region without gradients, which stands for an inference mode.

    Args:
        entered: Whether it is entered.
        given: Then whether the mode is on; otherwise what entering returned.

    Returns:
        Whether gradients were on before.
    """
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(before and not given if entered else given)
    return before
