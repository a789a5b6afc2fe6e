"""Lower a dynamo graph of torch functions to the ATen level of torch.export.

Higher-order ops stay in place: the body of an activation checkpoint is lowered too, the
bodies of a custom ``autograd.Function`` are left as the user wrote them.
"""

from typing import Any, Self

import torch
from torch.fx import GraphModule, Interpreter, traceback

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.rnn_cells import FUNCTIONS
from amprewrite.frameworks.torch_fx.compat import operators, tracing

CHECKPOINTS = frozenset(("tag_activation_checkpoint",))
"""Names of the higher-order ops of torch.utils.checkpoint."""


def checkpoint_region(body: GraphModule, *args: Any) -> Any:
    """Run ``body`` under activation checkpointing, as in the model."""
    return tracing.checkpointed(body, *args)


def lower(module: GraphModule, inputs: list[Any]) -> GraphModule:
    """Return ``module`` at the ATen level, before decomposition if possible.

    Args:
        module: A graph of torch functions and methods, from dynamo.
        inputs: Fake values of its placeholders.
    """

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta(), _Lowering(module) as lowering:
            return lowering.run(*args)

    if tracing.uses_transforms(module):
        traced = tracing.trace_below_transforms(run, tuple(inputs))
        traced.graph.eliminate_dead_code()  # sizes of values inside the transforms
        return traced
    return tracing.trace_pre_dispatch(run, tuple(inputs))


class _Lowering(Interpreter):
    """Interpreter that runs a graph under the tracer, and records higher-order ops."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.regions: list[torch.autocast] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the autocast regions that a failure left open."""
        while self.regions:
            self.regions.pop().__exit__(None, None, None)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operators.DATA_ATTRIBUTE:
            return args[0].detach()
        if target in operators.INFERENCE:
            return _switch_gradients(
                entered=target is operators.INFERENCE[0], given=args[0]
            )
        if ops.region_name(target) in ops.AUTOCAST_SPAN:
            return self._autocast(args)
        if target in FUNCTIONS and args[0].device.type == "cpu":
            return FUNCTIONS[target](*args, **kwargs)
        if operators.is_higher_order(target):
            return self._higher_order(target, args, kwargs)
        return super().call_function(target, args, kwargs)

    def _higher_order(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record a call with bodies; lower the body of an activation checkpoint."""
        if target.name() not in CHECKPOINTS:
            run = super().call_function
            return tracing.record_higher_order(
                target, args, kwargs, lambda: run(target, args, kwargs)
            )
        body, *operands = args
        with tracing.untraced():
            lowered = lower(body, operands)
        return tracing.record_higher_order(
            checkpoint_region, (lowered, *operands), {}, lambda: lowered(*operands)
        )

    def _autocast(self, args: Any) -> Any:
        """Open or close an autocast region, so that its ops get their dtypes.

        A plain call, as dynamo makes it, is recorded but opens nothing.
        """
        if isinstance(args[0], torch.autocast):
            return self.regions.pop().__exit__(None, None, None)
        region = torch.autocast(*args)
        self.regions.append(region)
        return region.__enter__()


def _switch_gradients(*, entered: bool, given: bool) -> bool:
    """Enter or leave a no-grad region that replaces an inference mode.

    Args:
        entered: Whether the region is entered.
        given: On entry, whether the mode is on; on exit, the result of the entry.

    Returns:
        The gradient mode before the call.
    """
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(before and not given if entered else given)
    return before
