"""NNX: a converted module shares its state with the model, and runs by a plan.

Its class is derived from the model's, and so are those of the modules in it. Each call
passes the state as arrays to a pure function that returns the changed state too, and
writes that back into the variables shared by both modules; so it works inside the
transformations of NNX and outside.
"""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flax import nnx as flax_nnx

from amprewrite.dtypes import Processor
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.capture.trace import Pair, part_name, replaced
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    Shared,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs
from amprewrite.frameworks.jaxpr.modules.conversion import (
    CALL,
    PLAIN,
    RUNNER,
    Conversion,
    RunsAsWrittenError,
    as_written,
    call_method,
    check_is_called,
    check_is_data,
    class_body,
    copies,
    metaclass,
    method_parameters,
    methods_of,
    overrides,
    plain_class,
    without_methods,
)
from amprewrite.frameworks.jaxpr.modules.states import (
    any_narrow,
    describe,
    stored,
    widened,
    without_narrow,
)
from amprewrite.frameworks.jaxpr.program.scopes import named, scope
from amprewrite.plan import Plan

# Converted NNX modules and their originals: attributes synchronised between them.
#
# Both hold the same variables. Other attributes set on one module, such as the mode by
# ``eval()``, are seen by the other: a converted module writes plain attributes through
# to its original, and copies those set on the original since.

nnx: Any = flax_nnx
"""Untyped view of ``flax.nnx``: its types are partial."""

Convert = Callable[[Any], Any]
"""Function that converts a module, or a container of modules."""

_NOTHING: Any = object()


@dataclass
class Twin:
    """A converted module and its original.

    Attributes:
        converted: The converted module.
        original: Its original.
        seen: Attributes of the original when it was last synchronised.
    """

    converted: weakref.ref[Any]
    original: weakref.ref[Any]
    seen: dict[str, Any]


@dataclass
class Twins:
    """The modules of one converted model with their originals, as long as both live."""

    by_id: dict[int, Twin] = field(default_factory=dict[int, Twin])

    def add(self, converted: Any, original: Any) -> None:
        """Record the original of a converted module."""
        key = id(converted)
        here = weakref.ref(converted, lambda _: self.by_id.pop(key, None))
        self.by_id[key] = Twin(here, weakref.ref(original), dict(vars(original)))

    def original(self, converted: Any) -> Any:
        """Return the original of a converted module; None if it is gone."""
        twin = self.by_id.get(id(converted))
        return None if twin is None else twin.original()

    def write(self, converted: Any, name: str, value: Any) -> None:
        """Set a plain attribute of a converted module on its original too."""
        source = self.original(converted)
        if source is not None and (value is None or isinstance(value, PLAIN)):
            setattr(source, name, value)
            self.by_id[id(converted)].seen[name] = value

    def follow(self, model: Any, convert: Convert) -> None:
        """Copy attributes set on the originals to the modules in ``model``."""
        for module in list(parts(model)):
            twin = self.by_id.get(id(module))
            source = twin and twin.original()
            if twin is None or source is None:
                continue
            now, seen = vars(source), twin.seen
            for name in {**seen, **now}:
                new = now.get(name, _NOTHING)
                if new is seen.get(name, _NOTHING):
                    continue
                if new is _NOTHING:
                    vars(module).pop(name, None)
                else:
                    object.__setattr__(module, name, convert(new))
            twin.seen = dict(now)

    def same(self, model: Any) -> Any:
        """Return the original of ``model`` if its modules are the same; else None."""
        for module in parts(model):
            source = self.original(module)
            mine = {name: v for name, v in vars(module).items() if name != RUNNER}
            if source is None or not self._equal(mine, vars(source)):
                return None
        return self.original(model)

    def _equal(self, mine: Any, other: Any) -> bool:
        if mine is other or self.original(mine) is other is not None:
            return True
        if type(mine) is not type(other):
            return False
        if isinstance(mine, list | tuple):
            return len(mine) == len(other) and all(map(self._equal, mine, other))
        if isinstance(mine, dict):
            return mine.keys() == other.keys() and all(
                self._equal(value, other[key]) for key, value in mine.items()
            )
        return isinstance(mine, PLAIN) and mine == other


def parts(model: Any) -> Iterator[Any]:
    """Yield the modules in a model, itself first, without repetition."""
    seen = set[int]()
    rest = [model]
    while rest:
        part = rest.pop()
        if isinstance(part, nnx.Pytree):
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, nnx.Module):
                yield part
            rest += vars(part).values()
        elif isinstance(part, list | tuple):
            rest += part
        elif isinstance(part, dict):
            rest += part.values()


def rebuilt(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    """Return a copy of a part of a model with new modules and the same variables.

    Args:
        part: A module, or a value in a module.
        change: Returns an empty module for a module; None leaves it as it is.
        memo: The new module for each module, by its identity.
    """
    if isinstance(part, nnx.Pytree):
        return _module(part, change, memo)
    if type(part) in (list, tuple):
        made = [rebuilt(value, change, memo) for value in part]
        same = all(a is b for a, b in zip(made, part, strict=True))
        return part if same else type(part)(made)
    if type(part) is dict:
        found = {key: rebuilt(value, change, memo) for key, value in part.items()}
        return part if all(found[key] is part[key] for key in part) else found
    return part


def _module(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    if id(part) in memo:
        return memo[id(part)]
    if next(parts(part), None) is None:
        return part  # such as random number streams, which are state
    made = change(part)
    memo[id(part)] = part if made is None else made
    if made is None:
        return part
    for name, value in vars(part).items():
        if name != RUNNER:
            object.__setattr__(made, name, rebuilt(value, change, memo))
    return made


STATE: type = nnx.State
"""Class of the containers of state."""


class _Conversion(Conversion):
    """Conversion of a model, with the originals of its modules."""

    def __init__(self, kind: Any, request: Request) -> None:
        super().__init__(kind, request, _function)
        self.twins = Twins()

    def converted(self, model: Any) -> Any:
        """Return a model, or a part of one, with its modules converted."""
        memo: dict[int, Any] = {}
        made = rebuilt(model, self._empty, memo)
        for module in parts(model):
            if memo.get(id(module), module) is not module:
                self.twins.add(memo[id(module)], module)
        return made

    def original(self, model: Any) -> Any:
        """Return the original of a converted model: the model itself if it is alive."""
        self.twins.follow(model, self.converted)
        same = self.twins.same(model)
        return rebuilt(model, self._plain, {}) if same is None else same

    def _empty(self, module: Any) -> Any:
        if conversion_of(module) is not None:
            return None
        kind = type(module)
        if not _has_methods(kind):
            return object.__new__(kind)
        made = object.__new__(_converted_class(kind))
        object.__setattr__(made, RUNNER, self)
        return made

    def _plain(self, module: Any) -> Any:
        other = conversion_of(module)
        if other is not None and other is not self:
            return None
        return object.__new__(plain_class(type(module)))


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` as a module that runs by a new plan."""
    plain = original(model)
    kind = type(plain)
    if not methods_of(kind, nnx.Module):
        raise without_methods(kind)
    return _Conversion(kind, request).converted(plain)


def conversion_of(model: Any) -> Any:
    """Return the conversion of a converted module; None if it is not converted."""
    return vars(model).get(RUNNER)


def converted_function_of(model: Any) -> ConvertedFunction | None:
    """Return the converted function of a module's call; None if not converted."""
    conversion = conversion_of(model)
    return conversion and conversion.function(plain_class(type(model)), CALL)


def plan_of(model: Any) -> Plan:
    """Return the plan of a converted module."""
    return conversion_of(model).plan


def arguments(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of the converted function.

    Raises:
        UnsupportedError: The model has no ``__call__``.
    """
    check_is_called(plain_class(type(model)))
    return _split(model, args)


def _split(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    graphdef, state = nnx.split(original(model))
    return (state, graphdef, *args)


def result_of(made: tuple[Any, Any]) -> Any:
    """Return the result of the model, without its changed state."""
    return made[0]


def original(model: Any) -> Any:
    """Return the plain module of a converted one; others as they are."""
    conversion = conversion_of(model)
    return model if conversion is None else conversion.original(model)


def state_of(model: Any) -> tuple[Any, list[Any]]:
    """Return the structure and the arrays of a module, its state."""
    graphdef, state = nnx.split(model)
    return graphdef, tree.tree_leaves(state)


def children(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in ``module`` by path; itself first."""
    yield "", module
    for path, child in nnx.iter_modules(module):
        if child is not module:
            yield ".".join(map(str, path)), child


def _function(kind: Any, name: str, shared: Shared) -> ConvertedFunction:
    """Return the converted function of method ``name`` of class ``kind``."""
    names = ("graphdef", *method_parameters(kind, name))
    return ConvertedFunction(
        functools.partial(_call_and_store, shared.request.processor, name),
        shared.request,
        functools.partial(describe_state, names),
        states_of,
        result_of,
        shared,
    )


def _call_and_store(
    processor: Processor | None,
    name: str,
    state: Any,
    graphdef: Any,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the result of :func:`call_on_state`; narrow statistics stay in float32.

    A method's changed statistics are known only after a run; it is then traced again.
    """
    made = call_on_state(name, state, graphdef, *args, **kwargs)
    if processor is None:
        return made
    held = dict(nnx.to_flat_state(state))
    changed = {path for path, _ in nnx.to_flat_state(made[1]) if path in held}
    narrow = {
        path: variable
        for path, variable in held.items()
        if path in changed and _is_statistic(variable) and any_narrow(variable)
    }
    if not narrow:
        return made
    before = widened(narrow, processor)
    wide = nnx.from_flat_state([*{**held, **before}.items()])
    result, after = call_on_state(name, wide, graphdef, *args, **kwargs)
    kept = [
        (path, stored(new, before[path], processor) if path in before else new)
        for path, new in nnx.to_flat_state(after)
    ]
    return result, nnx.from_flat_state(kept)


def _is_statistic(variable: Any) -> bool:
    return isinstance(variable, nnx.BatchStat)


def call_on_state(
    name: str, state: Any, graphdef: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Return the result of a method, and the part of the state that it changed.

    Raises:
        RunsAsWrittenError: It returns other data, or changes the model itself.
    """
    model = nnx.merge(graphdef, state, copy=True)
    before, attributes = _raw(model), _attributes(model)
    with named(children(model), children), scope("", holds_modules=True):
        result = call_method(model, name, args, kwargs)
    if name != CALL:
        check_is_data(result)
    after = nnx.to_flat_state(nnx.state(model))
    now = _raw(model)
    if (name := _changed(attributes, _attributes(model))) or before.keys() - now.keys():
        what = f"sets the attribute {name}" if name else "takes variables away"
        msg = f"it {what}."
        raise RunsAsWrittenError(msg, is_known=False)
    changed = [(p, v) for p, v in after if not _same(now[p], before.get(p))]
    return result, nnx.from_flat_state(changed)


def states_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield the variables that a call changes."""
    del kwargs
    state = args[0]
    statistics = {p for p, v in nnx.to_flat_state(state) if _is_statistic(v)}

    def is_statistic(path: tuple[Any, ...]) -> bool:
        names = tuple(map(part_name, path))
        return any(names[: len(p)] == tuple(map(str, p)) for p in statistics)

    yield from replaced(without_narrow(state, is_statistic), made[1])


def _raw(model: Any) -> dict[Any, list[Any]]:
    """Return the arrays in each variable, by path."""
    flat = nnx.to_flat_state(nnx.state(model))
    return {path: tree.tree_leaves(variable) for path, variable in flat}


def _same(now: list[Any], before: list[Any] | None) -> bool:
    if before is None or len(now) != len(before):
        return False
    return all(a is b for a, b in zip(now, before, strict=True))


def describe_state(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Inputs:
    """Describe the inputs of a function of the state of a module, and more.

    Args:
        names: Names of the arguments after the first.
        args: Positional arguments, the state first.
        kwargs: Keyword arguments.
    """
    state = args[0]
    flat = nnx.to_flat_state(state)
    trained = {
        tuple(map(str, path))
        for path, variable in flat
        if isinstance(variable, nnx.Param)
    }
    found = describe(names, lambda path: path[:-1] in trained, args, kwargs)
    count = len(tree.tree_leaves(state))
    own = tuple(name.removesuffix(".value") for name in found.names[:count])
    return Inputs((*own, *found.names[count:]), found.kinds)


def _attributes(model: Any) -> dict[tuple[int, str], Any]:
    """Return the plain attributes of the modules in a model, by module and name."""
    return {
        (index, name): value
        for index, module in enumerate(parts(model))
        for name, value in vars(module).items()
        if value is None or isinstance(value, PLAIN)
    }


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Return the name of an attribute that was set; empty if none was."""
    for key in {**before, **after}:
        if key not in before or key not in after or before[key] != after[key]:
            return str(key[1])
    return ""


def _run(model: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Run a method of a converted module, and write the changed state back."""
    kind = plain_class(type(model))
    conversion = conversion_of(model)

    written = functools.partial(as_written, kind, model, name, args, kwargs)
    if conversion is None:  # it is not made yet, or was made by a class method
        return written()
    call = _split(model, args), kwargs
    is_planned, made = conversion.run((kind, name), call, written)
    if not is_planned:
        return made
    result, changed = made
    nnx.update(model, changed)
    return result


SETTERS = ("init_cache", "set_view")
"""Methods that set attributes of layers, by a convention of Flax, and compute nothing.

``nnx.view`` calls ``set_view`` of every layer.
"""


def _has_methods(kind: Any) -> bool:
    """Return whether modules of a class are called: false for Flax's containers."""
    if not kind.__module__.startswith("flax."):
        return bool(methods_of(kind, nnx.Module))
    return CALL in methods_of(kind, nnx.Module)


@functools.cache
def _converted_class(kind: Any) -> Any:
    """Return the cached class of converted modules of class ``kind``.

    Flax keeps every module class forever, so there is one for each ``kind``, not each
    model.
    """

    def set_attribute(self: Any, name: str, value: Any) -> None:
        kind.__setattr__(self, name, value)
        if conversion := conversion_of(self):
            conversion.twins.write(self, name, value)

    body = class_body(kind, conversion_of)
    body |= copies(convert, conversion_of, original)
    body |= overrides(kind, nnx.Module, _run, SETTERS) | {"__setattr__": set_attribute}
    make = metaclass(type(kind))
    return make(kind.__name__, (kind,), body, pytree=kind._pytree__is_pytree)  # noqa: SLF001  # how a class says that it is no pytree
