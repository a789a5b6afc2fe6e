"""Forward hooks on the parts of a converted model."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE

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
