"""Effects of the user's hooks and forwards outside of a model: a capture loses them."""

import dis
import inspect
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.compat.module_hooks import forward_hooks
from amprewrite.frameworks.torch_fx.plain.plain_class import program_class
from amprewrite.frameworks.torch_fx.programs.flags import (
    functions_of,
    names_in,
    names_set_in,
)
from amprewrite.frameworks.torch_fx.untouched.contents import Variable
from amprewrite.user_code import is_users

_WRITES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "DELETE_")
"""Beginnings of the instructions that write to something other than a local name."""

_EFFECTS = frozenset(("print", "open", "input", "setattr", "delattr", "exec", "eval"))
"""Builtin functions with effects."""

_VALUES = (bool, int, float, complex, str, type(None), torch.dtype, torch.Tensor)


def hooks_with_effects(model: nn.Module) -> list[str]:
    """Return the paths and names of hooks that may do more than compute.

    Export runs a hook once and keeps its ops alone: values that it stores elsewhere
    (outputs of a layer, a count) would be stored once. Hooks of libraries are taken to
    compute.

    Args:
        model: The model with its hooks.
    """
    found: list[str] = []
    for path, part in module_parts.modules_by_path(model):
        for _, hook in module_hooks.named_call_hooks(part):
            if not computes_only(hook):
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                found.append(f"{name} of {path or 'the model itself'}")
    return found


def generators_drawn_once(model: nn.Module) -> list[str]:
    """Return the ``random.Random`` objects of a model that its forwards may draw from.

    dynamo takes a number drawn from one for a constant; from the functions of the
    module ``random``, and from NumPy's generators, it draws at each call (torch 2.13).

    Args:
        model: The model.
    """
    return [
        f"{path}.{name}" if path else name
        for path, part in module_parts.modules_by_path(model)
        for name, value in vars(part).items()
        if isinstance(value, Random) and _is_named(part, name)
    ]


def _is_named(part: nn.Module, name: str) -> bool:
    functions = functions_of(program_class(type(part)))
    return any(name in names_in(f) for f in functions)


class OutsideWrites:
    """Variables outside of a model that its forwards may write, and their values.

    They are global variables that the user's functions set, and lists, dicts and sets
    that these functions name, in global variables or around a nested function.
    """

    def __init__(self, model: nn.Module) -> None:
        """Record the values.

        Args:
            model: The model.
        """
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], Variable]] = {}
        self._cells: dict[int, tuple[str, Any, Variable]] = {}
        parts = list(model.modules())
        kinds = {program_class(type(part)) for part in parts}
        own = (held for part in parts for held in vars(part).values())
        functions = {f for f in own if isinstance(f, FunctionType)}
        for function in functions.union(*map(functions_of, kinds)):
            if is_users(function.__code__.co_filename):
                self._record(function)

    def _record(self, function: FunctionType) -> None:
        space = function.__globals__
        for name in names_in(function) & space.keys():
            before = _variable(space[name])
            if before.contents or name in names_set_in(function):
                self._globals[id(space), name] = space, before
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a variable that is not set yet
                continue
            self._cells[id(cell)] = name, cell, _variable(value)

    def names(self) -> list[str]:
        """Return the names of the variables that have other values now."""
        found = [
            name
            for (_, name), (space, before) in self._globals.items()
            if name not in space or before.is_changed(space[name])
        ]
        cells = self._cells.values()
        return found + [n for n, c, was in cells if was.is_changed(c.cell_contents)]

    def restore(self) -> None:
        """Put the values back."""
        for (_, name), (space, before) in self._globals.items():
            if name not in space or before.is_changed(space[name]):
                space[name] = before.value
                before.restore()
        for _, cell, before in self._cells.values():
            if before.is_changed(cell.cell_contents):
                cell.cell_contents = before.value
                before.restore()


def _variable(value: object) -> Variable:
    """Return a value, looked into if it is a list, dict or set of Python's own."""
    known = type(value).__module__ in ("builtins", "collections")
    return Variable(value, looked_into=known)


@contextmanager
def without_effects(model: nn.Module) -> Generator[None]:
    """Leave out effects of a run before the capture, in which nothing was called yet.

    Hooks that may do more than compute do not run, and what the forward writes outside
    of the model is put back.
    """
    outside = OutsideWrites(model)
    kept = [held for p in model.modules() for held in forward_hooks(p).values()]
    before = [(held, dict(held)) for held in kept]
    removed = {k for _, was in before for k in was if not computes_only(was[k])}
    for held, _ in before:
        for key in removed & held.keys():
            del held[key]
    try:
        yield
    finally:
        outside.restore()
        for held, was in before:
            now = {k: was[k] for k in was if k in held or k in removed}
            now.update(held)
            held.clear()
            held.update(now)


def computes_only(hook: Any) -> bool:
    """Return whether a hook is a library's, or a function that writes to no object.

    It is such a function if its code writes to local names alone, and refers outside
    to nothing but modules, classes, numbers, tensors and functions of libraries. Any
    other hook of the user may have effects: a method, an object that is called, a
    function that refers to a list.

    Args:
        hook: The hook.
    """
    function = hook if isinstance(hook, FunctionType) else None
    if function is None:
        code = _code_of(hook)
        return code is None or not is_users(code.co_filename)
    if not is_users(function.__code__.co_filename):
        return True
    return not _writes(function.__code__) and all(map(_is_inert, _outside(function)))


def _code_of(hook: Any) -> CodeType | None:
    """Return the code that a method, a partial or an object runs; None if it is C's."""
    while isinstance(hook, partial):
        hook = hook.func
    function = inspect.unwrap(hook)
    if not isinstance(function, (FunctionType, MethodType)):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _writes(code: CodeType) -> bool:
    inner = (held for held in code.co_consts if isinstance(held, CodeType))
    own = any(i.opname.startswith(_WRITES) for i in dis.get_instructions(code))
    return own or any(map(_writes, inner))


def _outside(function: FunctionType) -> Iterator[object]:
    """Yield the objects from outside that a function refers to."""
    found = inspect.getclosurevars(function)
    yield from found.nonlocals.values()
    yield from found.globals.values()
    yield from (found.builtins[name] for name in found.builtins if name in _EFFECTS)


def _is_inert(value: object) -> bool:
    if isinstance(value, FunctionType):
        return not is_users(value.__code__.co_filename)
    if isinstance(value, (ModuleType, type, *_VALUES)):
        return True
    return callable(value) and str(type(value).__module__).startswith("torch")
