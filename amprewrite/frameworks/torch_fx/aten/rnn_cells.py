"""Recurrent cells written out as linear layers and gates, on CPUs.

As one op a cell runs in one precision, gates included, and low gates lose digits that
the next step needs: errors against float64 were 1.2 to 1.3 times those of
torch.autocast, which lowers only the linear layers. Kernels for CPUs compute the cells
in the same steps, so writing them out costs nothing; CUDA has fused kernels, which are
left alone.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import rnn

from amprewrite.frameworks.torch_fx.compat import threads

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
