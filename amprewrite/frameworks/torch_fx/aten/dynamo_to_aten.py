"""Lower a dynamo graph of torch functions to the ATen level of torch.export.

Higher-order ops stay in place: the body of an activation checkpoint is lowered too, the
bodies of a custom ``autograd.Function`` are left as the user wrote them.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch.fx import GraphModule, Interpreter, traceback
from torch.nn import functional
from torch.nn.modules import rnn

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.compat import operators, threads, tracing

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
            entered = target is operators.INFERENCE[0]
            return _switch_gradients(entered=entered, given=args[0])
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


# Recurrent cells written out as linear layers and gates, on CPUs.
#
# As one op a cell runs in one precision, gates included, and low gates lose digits that
# the next step needs: errors against float64 were 1.2 to 1.3 times those of
# torch.autocast, which lowers only the linear layers. Kernels for CPUs compute the
# cells in the same steps, so writing them out costs nothing; CUDA has fused kernels,
# which are left alone.

Tensor = torch.Tensor


def gru_cell(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """Return the next hidden state of a GRU cell; the formula of nn.GRUCell."""
    of_x, of_h = _linears(x, h, weights)
    reset_x, update_x, new_x = of_x.chunk(3, 1)
    reset_h, update_h, new_h = of_h.chunk(3, 1)
    reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
    new = (new_x + reset * new_h).tanh()
    return new + update * (h - new)


def lstm_cell(
    x: Tensor, state: tuple[Tensor, Tensor], *weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the next hidden and cell state; the formula of nn.LSTMCell."""
    h, cell = state
    of_x, of_h = _linears(x, h, weights)
    into, forget, new, out = (of_x + of_h).chunk(4, 1)
    cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def rnn_tanh_cell(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """Return the next hidden state; the formula of nn.RNNCell."""
    of_x, of_h = _linears(x, h, weights)
    return (of_x + of_h).tanh()


def rnn_relu_cell(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """Return the next hidden state; the formula of nn.RNNCell with relu."""
    of_x, of_h = _linears(x, h, weights)
    return (of_x + of_h).relu()


def _linears(
    x: Tensor, h: Tensor, weights: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    of_x, of_h, *biases = weights
    first, second = biases or (None, None)
    return functional.linear(x, of_x, first), functional.linear(h, of_h, second)


WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    cell.__name__: cell for cell in (gru_cell, lstm_cell, rnn_tanh_cell, rnn_relu_cell)
}
"""Written-out cells by the name of their function in torch."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    getattr(torch, name): cell for name, cell in WRITTEN_OUT.items()
}
"""Written-out cells by the function that a dynamo graph calls."""


@contextmanager
def cells_written_out(device: str) -> Generator[None]:
    """Trace cells of torch.nn on a CPU as their parts, in the context."""
    with ExitStack() as stack:
        if device == "cpu":
            functions: Any = vars(rnn)["_VF"]
            for name, cell in WRITTEN_OUT.items():
                stack.enter_context(threads.replaced(functions, name, cell))
        yield
