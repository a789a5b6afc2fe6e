"""First run of a model before a capture, without side effects."""

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amprewrite.errors import CaptureError, warn
from amprewrite.frameworks.torch_fx.capture.attributes import Attributes
from amprewrite.frameworks.torch_fx.capture.export import offending_line
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    pytrees,
    settings,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of, writes


@contextmanager
def undisturbed(model: nn.Module) -> Generator[None]:
    """Restore the model's buffers and attributes and the random state at the end.

    Parameters are not copied; a write to one by the forward gives a warning. Hooks that
    the forward registers on parts stay, and the flags that say so.
    """
    attributes = Attributes.of(model, tensors=True)
    written = {name: writes(p) for name, p in _parameters(model)}
    made = (buffer for buffer in model.buffers() if not is_lazy(buffer))
    before = [(buffer, buffer.clone()) for buffer in made]
    named = [(part, dict(module_parts.buffers(part))) for part in model.modules()]
    devices = sorted({t.device.index or 0 for t in model.parameters() if t.is_cuda})
    with settings.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, held in before:
                    buffer.copy_(held)
            for part, buffers in named:
                module_parts.buffers(part).update(buffers)
            attributes.restore(hooks=False)
    for name, parameter in _parameters(model):
        if written.get(name, writes(parameter)) != writes(parameter):
            msg = (
                f"forward writes to the parameter {name}; the run before the capture "
                f"has done so once more"
            )
            warn(msg)


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if not is_lazy(p)]


def warm_up(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Call the model once on copies of its arguments.

    transformers installs hooks under a lock at the first call, which dynamo cannot
    trace; and it shows if the model itself fails on these arguments.

    Raises:
        CaptureError: The model fails on these arguments.
    """
    try:
        try_run(module_parts.called_plainly(model), model, args, kwargs)
    except Exception as error:
        where = offending_line(error) or "its call"
        msg = (
            f"{type(model).__name__} itself fails on these arguments at {where}: "
            f"{str(error).strip()}; pass arguments that the model runs with"
            f"{_mixed(model, (args, kwargs))}"
        )
        raise CaptureError(msg) from error


def _mixed(model: nn.Module, arguments: Any) -> str:
    """Return advice for a model with parts and arguments of several float dtypes."""
    leaves = pytrees.pytree.tree_leaves(arguments)
    given = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    tensors = (*model.parameters(), *model.buffers(), *given)
    found = sorted({str(t.dtype) for t in tensors if t.is_floating_point()})
    if len(found) == 1:
        return ""
    names = ", ".join(name.removeprefix("torch.") for name in found)
    return f', or policy="promote", which casts operands to one dtype (found: {names})'


def has_values(model: nn.Module, *arguments: Any) -> bool:
    """Return whether all tensors have values: none is fake or on the meta device."""
    given = pytrees.pytree.tree_leaves(arguments)
    leaves = (leaf for leaf in given if isinstance(leaf, torch.Tensor))
    held = [*model.parameters(), *model.buffers(), *leaves]
    fake = fake_mode_of(held) is not None
    return not fake and not any(tensor.is_meta for tensor in held)


def try_run(
    run: Callable[..., Any],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Run ``model`` by ``run`` on copies of its arguments, without side effects.

    It runs without gradients, which is faster, unless gradients are enabled and the
    model needs them in its forward (forces as the gradient of an energy).
    """
    try:
        # reentrant checkpoints say so, of this run alone
        unheard = threads.silent(message="None of the inputs have requires_grad")
        with undisturbed(model), torch.no_grad(), unheard:
            run(*copies(args), **copies(dict(kwargs)))
    except Exception:
        if not torch.is_grad_enabled():
            raise
        with undisturbed(model):
            run(*copies(args), **copies(dict(kwargs)))


def copies(arguments: Any) -> Any:
    """Return ``arguments`` with every tensor and every other object copied."""

    def copied(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg.detach().clone().requires_grad_(arg.requires_grad)
        with suppress(Exception):  # one that cannot be copied is used as it is
            return copy.deepcopy(arg)
        return arg

    return pytrees.pytree.tree_map(copied, arguments)
