"""Hooks of modules, in the dicts in which torch keeps them."""
# pyright: reportPrivateUsage=false

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

Hooks = Mapping[str, Mapping[int, Any]]
"""Forward hooks of a module, by the attributes that hold them."""

_PACKAGE = __name__.partition(".")[0]

_TORCH = "torch."
"""Beginning of the names of torch's own Python modules."""


def call_hooks(module: nn.Module) -> tuple[int, ...]:
    """Return the keys of the hooks of a module that run in or after its forward."""
    return tuple(key for key, _ in named_call_hooks(module))


def named_call_hooks(module: Any) -> Iterator[tuple[int, Any]]:
    """Yield the hooks of a module that run in or after its forward, with their keys."""
    yield from module._forward_pre_hooks.items()
    yield from module._forward_hooks.items()
    yield from module._backward_pre_hooks.items()
    yield from module._backward_hooks.items()


def forward_hooks(module: nn.Module) -> dict[str, dict[int, Any]]:
    """Return the forward hooks of ``module`` and their options, to be changed."""
    names = ("_forward_hooks", "_forward_pre_hooks")
    return {name: held for name, held in vars(module).items() if name.startswith(names)}


def are_for_all_modules() -> bool:
    """Return whether there are forward hooks for all modules, but for our and torch's.

    Those of torch count ops by module.
    """
    registry: Any = torch_module
    dicts = registry._global_forward_hooks, registry._global_forward_pre_hooks
    hooks = (hook for hooks in dicts for hook in hooks.values())
    modules = (str(getattr(hook, "__module__", "")) for hook in hooks)
    return not all(module.startswith((f"{_PACKAGE}.", _TORCH)) for module in modules)


@contextmanager
def without_trackers() -> Generator[None]:
    """Take out torch's own hooks for all modules: those of counters of ops by module.

    Dynamo cannot trace them, and leaves the code of a module out for good where it met
    one (``torch.utils.module_tracker``, torch 2.11 to 2.15). Hooks of the user stay.
    """
    registry: Any = torch_module
    tables = registry._global_forward_pre_hooks, registry._global_forward_hooks
    if not any(tables):  # as nearly always
        yield
        return
    before = [dict(table) for table in tables]
    for table in tables:
        for key, hook in [*table.items()]:
            if str(getattr(hook, "__module__", "")).startswith(_TORCH):
                del table[key]
    left = [set(table) for table in tables]
    try:
        yield
    finally:
        for table, hooks, kept in zip(tables, before, left, strict=True):
            now = dict(table)
            table.clear()  # in the order of before
            table.update({k: h for k, h in hooks.items() if k in now or k not in kept})
            table.update(now)


def take_forward_hooks(module: nn.Module) -> Hooks:
    """Remove the forward hooks of ``module`` itself, and return them."""
    taken = {name: dict(hooks) for name, hooks in forward_hooks(module).items()}
    for name in taken:
        vars(module)[name].clear()
    return taken


def set_forward_hooks(module: nn.Module, hooks: Hooks) -> None:
    """Make ``hooks`` the forward hooks of ``module`` itself."""
    take_forward_hooks(module)
    for name, held in hooks.items():
        vars(module)[name].update(held)


def load_hooks(module: Any) -> dict[int, Any]:
    """Return the hooks that run after ``load_state_dict``, as a dict to change."""
    return module._load_state_dict_post_hooks


def backward_hooks(module: Any) -> int:
    """Return the number of backward hooks and backward pre-hooks on ``module``."""
    return len(module._backward_hooks) + len(module._backward_pre_hooks)
