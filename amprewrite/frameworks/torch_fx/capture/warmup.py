"""First run of a model before a capture, without side effects."""

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from amprewrite.errors import CaptureError, of_both
from amprewrite.frameworks.torch_fx.capture.export import offending_line
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    pytrees,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed


def warm_up(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[torch.UntypedStorage]:
    """Call the model once on copies of its arguments.

    transformers installs hooks under a lock at the first call, which dynamo cannot
    trace; and it shows if the model itself fails on these arguments.

    Returns:
        The memory that the model writes to.

    Raises:
        CaptureError: The model fails on these arguments, and then it is of the class of
            the model's exception, too; or the model draws from a ``random.Random``.
    """
    try:
        trial = try_run(module_parts.called_plainly(model), model, args, kwargs)
    except Exception as error:
        where = offending_line(error) or "its call"
        msg = (
            f"{type(model).__name__} itself fails on these arguments at {where}: "
            f"{str(error).strip()}; pass arguments that the model runs with"
            f"{_mixed(model, (args, kwargs))}"
        )
        raise of_both(CaptureError(msg), error) from error
    if trial.drawn:
        msg = (
            f"forward draws from {trial.drawn[0]}, a random.Random, and a program "
            f"would have one number of it for all calls; use the functions of the "
            f"module random, or numpy.random.default_rng(), from which each call draws"
        )
        raise CaptureError(msg)
    return trial.written


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


class Trial(NamedTuple):
    """What a run did that was put back.

    Attributes:
        written: The memory that it wrote to.
        drawn: Names of the ``random.Random`` objects of the model that it drew from.
    """

    written: list[torch.UntypedStorage]
    drawn: list[str]


def try_run(
    run: Callable[..., Any],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Trial:
    """Run ``model`` by ``run`` on copies of its arguments, without side effects.

    It runs without gradients, which is faster, unless gradients are enabled and the
    model needs them in its forward (forces as the gradient of an energy).
    """
    try:
        # reentrant checkpoints say so, of this run alone
        unheard = threads.silent(message="None of the inputs have requires_grad")
        with undisturbed(model, hooks=False) as before, torch.no_grad(), unheard:
            run(*copies(args), **copies(dict(kwargs)))
            drawn = before.attributes.drawn_inside()
    except Exception:
        if not torch.is_grad_enabled():
            raise
        with undisturbed(model, hooks=False) as before:
            run(*copies(args), **copies(dict(kwargs)))
            drawn = before.attributes.drawn_inside()
    return Trial(before.writes.known, drawn)


def copies(arguments: Any) -> Any:
    """Return ``arguments`` with every tensor and every other object copied."""

    def copied(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg.detach().clone().requires_grad_(arg.requires_grad)
        with suppress(Exception):  # one that cannot be copied is used as it is
            return copy.deepcopy(arg)
        return arg

    return pytrees.pytree.tree_map(copied, arguments)
