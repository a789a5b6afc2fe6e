"""Equinox: a converted module has the same leaves, and runs by a plan when called.

Its class is derived from the model's, and so are those of the modules in it. The
conversion is a static field: modules made from a converted one, by an update of its
parameters or by ``eqx.tree_at``, are converted too. The structures of a converted and a
plain module differ, and must: JAX looks up compiled functions by the structure, and
would run the trace of one for the other.
"""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
from collections.abc import Callable, Iterator
from typing import Any

import equinox

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.capture.trace import part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.function.adapters import calling, states
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    Shared,
)
from amprewrite.frameworks.jaxpr.modules.conversion import (
    CALL,
    RUNNER,
    Conversion,
    as_written,
    call_method,
    check_is_called,
    check_is_data,
    class_body,
    copies,
    made_of,
    metaclass,
    method_parameters,
    methods_of,
    overrides,
    plain_class,
    without_methods,
)
from amprewrite.frameworks.jaxpr.modules.states import describe
from amprewrite.frameworks.jaxpr.program.scopes import scope
from amprewrite.plan import Plan

eqx: Any = equinox
"""Untyped view of ``equinox``: its types are partial."""

Change = Callable[[Any], tuple[Any, dict[str, Any]]]
"""Function from a module to its new class and additional fields."""

_NOT_CALLED: tuple[type, ...] = (eqx.nn.Shared, eqx.nn.StateIndex)
"""Classes of layers that share other layers, or stand for state."""

STATE: type = eqx.nn.State
"""Class of the containers of state."""

WRAPPERS: tuple[Any, ...] = tuple(
    getattr(eqx, name)(abs).__class__
    for name in ("filter_checkpoint", "filter_grad", "filter_jit", "filter_vmap")
)
"""Classes of the callables that Equinox's transformations return."""


class _Conversion(Conversion):
    def converted(self, model: Any) -> Any:
        return _mapped(model, functools.partial(_converted, self))


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` as a module that runs by a new plan."""
    plain = original(model)
    conversion = _Conversion(plain.__class__, request, _function)
    made = conversion.converted(plain)
    if conversion_of(made) is None:  # it has no method
        raise without_methods(type(plain))
    return made


def conversion_of(model: Any) -> Conversion | None:
    """Return the conversion of a converted module; None if it is not converted."""
    return getattr(model, RUNNER, None)


def converted_function_of(model: Any) -> ConvertedFunction | None:
    """Return the converted function of a module's call; None if not converted."""
    conversion = conversion_of(model)
    return conversion and conversion.function(plain_class(type(model)), CALL)


def plan_of(model: Any) -> Plan:
    """Return the plan of a converted module."""
    found: Any = conversion_of(model)
    return found.plan


def arguments(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of the converted function.

    Raises:
        UnsupportedError: The model has no ``__call__``.
    """
    check_is_called(plain_class(type(model)))
    return (original(model), *args)


def original(model: Any) -> Any:
    """Return the plain module of a converted one; others as they are."""
    conversion = conversion_of(model)
    if conversion is None:
        return model
    leaves, structure = tree.tree_flatten(model)
    return tree.tree_unflatten(_plain_structure(structure, conversion), leaves)


@functools.lru_cache(maxsize=4096)
def _plain_structure(structure: Any, conversion: Conversion) -> Any:
    """Return the structure of the original of a converted module."""
    model = tree.tree_unflatten(structure, [object()] * structure.num_leaves)
    plain = _mapped(model, functools.partial(_plain, conversion))
    return tree.tree_structure(plain)


def _converted(conversion: Conversion, module: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class of a module in a converted model, and additional fields."""
    kind = type(module)
    is_model = kind is conversion.kind and bool(methods_of(kind, eqx.Module))
    if conversion_of(module) is not None or not (is_model or _has_methods(kind)):
        return kind, {}
    return _converted_class(kind), {RUNNER: conversion}


def _plain(conversion: Conversion, module: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class of a module in an original, and additional fields."""
    if conversion_of(module) is not conversion:
        return type(module), {}
    return plain_class(type(module)), {}


def _mapped(part: Any, change: Change) -> Any:
    """Return a tree with its modules, at any depth, changed by ``change``."""

    def changed(leaf: Any) -> Any:
        if not _is_module(leaf):
            return leaf
        kind, more = change(leaf)
        fields = leaf.__dataclass_fields__
        held = {
            name: value
            if name in fields and fields[name].metadata.get("static", False)
            else _mapped(value, change)
            for name, value in vars(leaf).items()
        }
        same = kind is type(leaf) and all(held[n] is v for n, v in vars(leaf).items())
        return leaf if same else made_of(kind, {**held, **more})

    found, structure = tree.tree_flatten(part, is_leaf=_is_module)
    made = [changed(leaf) for leaf in found]
    if all(a is b for a, b in zip(found, made, strict=True)):
        return part
    return tree.tree_unflatten(structure, made)


def _is_module(part: Any) -> bool:
    return isinstance(part, eqx.Module)


def children(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in ``module`` by path; itself first."""
    yield "", module

    def is_leaf(part: Any) -> bool:
        return isinstance(part, eqx.Module) and part is not module

    inside = tree.tree_flatten_with_path(module, is_leaf=is_leaf)[0]
    for path, leaf in inside:
        if is_leaf(leaf):
            above = ".".join(map(part_name, path))
            for below, child in children(leaf):
                yield f"{above}.{below}" if below else above, child


def _function(kind: Any, name: str, shared: Shared) -> ConvertedFunction:
    """Return the converted function of method ``name`` of class ``kind``."""
    names = method_parameters(kind, name)
    described = functools.partial(describe, names, lambda _: True)
    call = functools.partial(_call, name)
    return ConvertedFunction(call, shared.request, described, states, shared=shared)


def _call(name: str, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    with scope("", holds_modules=True), calling(model, args, kwargs):
        made = call_method(model, name, args, kwargs)
    if name != CALL:
        check_is_data(made, eqx.Module)
    return made


def _run(model: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Run a method of a converted module."""
    kind = plain_class(type(model))
    conversion = conversion_of(model)

    written = functools.partial(as_written, kind, model, name, args, kwargs)
    if conversion is None:  # made by a class method
        return written()
    plain = original(model)
    call = (plain, *args), kwargs
    is_planned, made = conversion.run((kind, name), call, written)
    return _with_parts(made, plain, conversion) if is_planned else made


def _with_parts(made: Any, model: Any, conversion: Conversion) -> Any:
    """Return a result with its modules of the model's classes converted."""
    found = filter(_is_module, tree.tree_leaves(made, is_leaf=_is_module))
    if next(found, None) is None:
        return made
    kinds = {type(module) for _, module in children(model)}

    def change(module: Any) -> tuple[Any, dict[str, Any]]:
        if type(module) not in kinds:
            return type(module), {}
        return _converted(conversion, module)

    return _mapped(made, change)


def _has_methods(kind: Any) -> bool:
    """Return whether modules of a class are called: false for Equinox's internals."""
    package, *inner = kind.__module__.split(".")
    is_internal = package == "equinox" and inner[:1] != ["nn"]
    if is_internal or issubclass(kind, _NOT_CALLED):
        return False
    return bool(methods_of(kind, eqx.Module))


@functools.cache
def _converted_class(kind: Any) -> Any:
    """Return the cached class of converted modules of class ``kind``.

    JAX keeps every pytree class forever, so there is one for each ``kind``, not each
    model.
    """
    fields = kind.__dataclass_fields__
    body = class_body(kind, conversion_of, fields)
    body |= overrides(kind, eqx.Module, _run, fields)
    body |= copies(convert, conversion_of, original)
    body["__annotations__"] = {RUNNER: Any}
    body[RUNNER] = eqx.field(static=True, default=None, repr=False)
    return metaclass(type(kind))(kind.__name__, (kind,), body)
