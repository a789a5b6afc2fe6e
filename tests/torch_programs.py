"""What torch tests share: run a model, its conversion and its references."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree

LOW = torch.bfloat16


class Program(nn.Module):
    """A function and its modules as a module."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    if TYPE_CHECKING:  # parts are of any kind

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the module first."""
        return self.function(self, *args, **kwargs)


def floats(output: Any) -> list[torch.Tensor]:
    """Return the float tensors of an output, in order."""
    leaves = pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def relative_error(actual: Any, expected: Any) -> float:
    """Return the relative L2 error over all float tensors."""
    pairs = list(zip(floats(actual), floats(expected), strict=True))
    pairs = [(a.detach().double(), e.detach().double()) for a, e in pairs]
    off = sum(float(((a - e) ** 2).sum()) for a, e in pairs)
    return (off / max(sum(float((e**2).sum()) for _, e in pairs), 1e-300)) ** 0.5


def in_full(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return what ``model`` gives as it is."""
    with torch.no_grad():
        return model(*args, **kwargs)


def under_autocast(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return what ``model`` gives under torch.autocast on the CPU."""
    with torch.no_grad(), torch.autocast("cpu", LOW):
        return model(*args, **kwargs)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def traced(function: Callable[..., Any], *args: Any) -> Any:
    """Return the node of the last op of ``function`` as captured."""
    program = torch.export.export(Call(function), args, strict=False)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return next(n for n in reversed(calls) if not str(n.target).startswith("<built-in"))


def graph_of(function: Callable[..., Any], *args: Any) -> Any:
    """Return the graph module of ``function``, captured; by default for 4 by 8."""
    given = args or (torch.randn(4, 8),)
    program = torch.export.export(Program(function).eval(), given, strict=False)
    return program.module(check_guards=False)


def whole_numbers(module: Any) -> Any:
    """Return a module with whole numbers as parameters: sums of any order agree."""
    with torch.no_grad():
        for held in module.parameters():
            held.copy_(torch.arange(held.numel()).remainder(5).sub(2).view_as(held))
    return module
