"""Forward hooks on the parts of a converted model."""

import inspect
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, cast

from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.compat.module_hooks import forward_hooks
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.user_code import is_users

_OF_TORCH = "torch.nn.utils."
"""Module of the hooks that compute weights (pruning, weight norm): ops of a program."""


def new_hook(model: nn.Module) -> str:
    """Return the reason to run the hooks that were registered on parts, or no text.

    A program of one graph has the ops of a hook, but its effects besides computing
    would happen once, while the graph is captured; dynamo runs it at each call. Hooks
    of torch that compute a weight are captured, and those that parts had when the model
    was converted.

    Args:
        model: The converted model, or a part of one.

    Returns:
        Text that names the first such part and hook; empty without one.
    """
    for path, part in module_parts.modules_by_path(model):
        state: Any = vars(part).get(STATE)
        if part is model or state is None:
            continue
        for key, hook in module_hooks.named_call_hooks(part):
            kind = cast("type[Any]", type(hook))
            homes = f"{kind.__module__}. {getattr(hook, '__module__', '')}."
            if key not in state.hooks and _OF_TORCH not in homes:
                name = getattr(hook, "__qualname__", kind.__qualname__)
                return (
                    f"part {path} has a hook, {name}, which was registered after the "
                    f"conversion, and may do more than compute"
                )
    return ""


def users_hooks(model: nn.Module) -> Iterator[str]:
    """Yield the names and paths of the hooks on parts that the user wrote.

    A program of one graph has the ops of a hook, and what else it does (outputs of a
    layer that it stores, a count, a line that it prints) would be done once.

    Args:
        model: The model.
    """
    for path, part in module_parts.modules_by_path(model):
        for _, hook in module_hooks.named_call_hooks(part):
            if _is_users(hook):
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                yield f"{name} of {path or 'the model itself'}"


def _is_users(hook: Any) -> bool:
    """Return whether the code that a function, a method or an object runs is a user's.

    Functions of C are not.
    """
    while isinstance(hook, partial):
        hook = hook.func
    function = inspect.unwrap(hook)
    if not isinstance(function, (FunctionType, MethodType)):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code is not None and is_users(code.co_filename)


@contextmanager
def without_users_hooks(model: nn.Module) -> Generator[None]:
    """Leave the hooks of the user out of a run that is not the user's.

    Hooks that are registered meanwhile stay, after those that were there before.
    """
    kept = [held for p in model.modules() for held in forward_hooks(p).values()]
    before = [(held, dict(held)) for held in kept]
    removed = {key for _, was in before for key in was if _is_users(was[key])}
    for held, _ in before:
        for key in removed & held.keys():
            del held[key]
    try:
        yield
    finally:
        for held, was in before:
            now = {k: was[k] for k in was if k in held or k in removed}
            now.update(held)
            held.clear()
            held.update(now)


def hook_keys(model: nn.Module) -> frozenset[int]:
    """Return the keys of the forward hooks of all parts; keys are unique."""
    return frozenset(key for _, _, key, _ in _hooks(model))


def adopt_hooks(
    model: nn.Module, owner: nn.Module, known: frozenset[int]
) -> Mapping[str, dict[int, Any]]:
    """Register on the parts of ``owner`` the hooks that a forward registered.

    transformers registers hooks on the layers of a model when their outputs are first
    asked for, and sets an attribute that says so.

    Args:
        model: The plain model that ran.
        owner: The converted model, or the part of one, that it ran for.
        known: Keys of the hooks that ``model`` had before.

    Returns:
        The hooks that it registered on itself, by the attributes that hold them.
    """
    own: dict[str, dict[int, Any]] = {}
    for path, name, key, hook in _hooks(model):
        if key in known:
            continue
        if not path:
            own.setdefault(name, {})[key] = hook
            continue
        part = owner.get_submodule(path)
        vars(part)[name][key] = hook
        state: Any = vars(part).get(STATE)
        if state is not None:
            state.hooks |= {key}
    return own


def _hooks(model: nn.Module) -> Iterator[tuple[str, str, int, Any]]:
    """Yield the path, the attribute, the key and the value of all forward hooks."""
    seen = set[int]()
    for path, part in module_parts.modules_by_path(model):
        if id(part) in seen:
            continue
        seen.add(id(part))
        for name, held in module_hooks.forward_hooks(part).items():
            for key, hook in held.items():
                yield path, name, key, hook
