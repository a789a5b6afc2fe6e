"""Run a torch model in wider dtypes, as the reference, also where it names a dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amprewrite.frameworks.torch_fx.aten.dtypes import dtype_name
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.executor import default_dtype, widened
from amprewrite.frameworks.torch_fx.module.snapshot import deep_copy
from amprewrite.frameworks.torch_fx.probes.runner import Dtypes, Runner
from amprewrite.measure.runs import Call, Run


class Widen(TorchFunctionMode):
    """Mode that runs a model in wider dtypes, also where it names a dtype.

    Attributes:
        replaced: Number of calls that name a dtype.
    """

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.replaced: int = 0
        target = dtypes.get(torch.float32)
        self.methods = {torch.Tensor.float: target} if target is not None else {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given: dict[str, Any] = kwargs or {}
        if not self.names_dtype(func, (*args, *given.values())):
            return func(*args, **given)
        self.replaced += 1
        if func in self.methods:
            return args[0].to(self.methods[func])
        args, given = widened(tuple(args), self.dtypes), widened(given, self.dtypes)
        return func(*args, **given)

    def names_dtype(self, func: Any, operands: tuple[Any, ...]) -> bool:
        """Return whether a call names a dtype that is replaced."""
        if func in self.methods:
            return True
        named = any(isinstance(x, torch.dtype) and x in self.dtypes for x in operands)
        return named and func is not torch.Tensor.view  # it reads bits


class Counted(Widen):
    """Mode that counts the calls that the other one changes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        given: dict[str, Any] = kwargs or {}
        self.replaced += self.names_dtype(func, (*args, *given.values()))
        return func(*args, **given)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, of which the calls are counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return counted


def run_wide(root: nn.Module, runner: Runner, dtypes: Dtypes) -> tuple[Run, list[str]]:
    """Return the run of a model in wider dtypes, and notes about it."""
    if not dtypes:
        return runner.run(root, root), []
    target = next(iter(dtypes.values()))
    model = deep_copy(root, {})
    _convert(model, dtypes)
    mode = Widen(dtypes)
    with mode, default_dtype(dtypes.get(torch.get_default_dtype(), target)):
        run = runner.run(model, model, dtypes, owned=True)
    return run, named_dtypes(mode.replaced, target)


def named_dtypes(calls: int, target: torch.dtype) -> list[str]:
    """Return the note that a model names float dtypes, if it does.

    Args:
        calls: Number of calls that name one.
        target: The dtype that they got in the reference.
    """
    if not calls:
        return []
    note = (
        f"the model names a float dtype in {calls} calls; in the reference they are "
        f"{dtype_name(target)}"
    )
    return [note]


def _convert(model: nn.Module, dtypes: Dtypes) -> None:
    """Convert parameters and buffers to other dtypes, in place; ties are kept."""
    for held in (*model.parameters(), *model.buffers()):
        held.data = held.data.to(dtypes.get(held.dtype, held.dtype))
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # its kernels want the weights in one piece


def wide_dtypes(root: nn.Module, call: Call, target: torch.dtype) -> Dtypes:
    """Return the float dtypes of the model and its inputs, each with ``target``."""
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    held = {x.dtype for x in (*root.parameters(), *root.buffers(), *tensors)}
    chosen = {torch.float32, *(d for d in held if d.is_floating_point)}
    bits = torch.finfo(target).bits
    return {dtype: target for dtype in chosen if torch.finfo(dtype).bits < bits}
