"""Lower a dynamo graph of torch functions to the ATen level that export gives.

Higher-order ops keep their place: an activation checkpoint's body is lowered too, the
bodies of a custom ``autograd.Function`` stay as the user wrote them.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, traceback

from amprewrite.frameworks.torch_fx import _compat
from amprewrite.frameworks.torch_fx.cells import FUNCTIONS

CHECKPOINTS = frozenset(("tag_activation_checkpoint",))
"""Higher-order ops that stand for torch.utils.checkpoint."""


def checkpoint_region(body: GraphModule, *args: Any) -> Any:
    """Run ``body`` under activation checkpointing, as the model asks."""
    return _compat.checkpointed(body, *args)


def lower(module: GraphModule, inputs: list[Any]) -> GraphModule:
    """Return ``module`` at the ATen level, before decomposition if it can be.

    Args:
        module: A graph of torch functions and methods, as dynamo gives it.
        inputs: Fake values of its placeholders.
    """

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta():
            return _Lowering(module).run(*args)

    if _compat.uses_transforms(module):
        traced = _compat.trace_below_transforms(run, tuple(inputs))
        traced.graph.eliminate_dead_code()  # sizes of values inside the transforms
        return traced
    return _compat.trace_pre_dispatch(run, tuple(inputs))


class _Lowering(Interpreter):
    """Runs a graph under the tracer; records higher-order ops itself."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _compat.DATA_ATTRIBUTE:
            return args[0].detach()
        if target in _compat.INFERENCE:
            return _switch_gradients(
                entered=target is _compat.INFERENCE[0], given=args[0]
            )
        if target in FUNCTIONS and args[0].device.type == "cpu":
            return FUNCTIONS[target](*args, **kwargs)
        if not _compat.is_higher_order(target):
            return super().call_function(target, args, kwargs)
        if target.name() not in CHECKPOINTS:
            run = super().call_function
            return _compat.record_higher_order(
                target, args, kwargs, lambda: run(target, args, kwargs)
            )
        body, *operands = args
        with _compat.untraced():
            lowered = lower(body, operands)
        return _compat.record_higher_order(
            checkpoint_region, (lowered, *operands), {}, lambda: lowered(*operands)
        )


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
