"""NNX: a converted module shares its state with the model, and runs by a plan.

Its class is derived from the model's. Each call takes the state as arrays, runs a pure
function that gives the changed state too, and writes that back into the variables that
both modules hold; so it works inside the transformations of NNX and outside.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from flax import nnx as flax_nnx

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules.derived import RUNNER, class_body, with_class
from amprewrite.frameworks.jaxpr.modules.inputs import describe
from amprewrite.frameworks.jaxpr.prepare import Inputs
from amprewrite.frameworks.jaxpr.run import ConvertedFunction, parameter_names
from amprewrite.frameworks.jaxpr.scopes import named, scope
from amprewrite.frameworks.jaxpr.states import Pair, replaced
from amprewrite.frameworks.jaxpr.untyped import tree_util

nnx: Any = flax_nnx
tree: Any = tree_util
"""Their types are known in part only."""


STATE: type = nnx.State
"""Class of the containers of state."""


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` as a module that runs by a plan; a converted one anew."""
    plain = original(model)
    converted = with_class(plain, _converted_class(plain.__class__))
    names = ("graphdef", *parameter_names(plain))
    described = functools.partial(_describe, names)
    runner = ConvertedFunction(_call, request, described, _states, result_of)
    object.__setattr__(converted, RUNNER, runner)
    return converted


def runner_of(model: Any) -> ConvertedFunction | None:
    """Return what runs a converted module; None if it is not converted."""
    return model.__dict__.get(RUNNER)


def arguments(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of the function that is converted."""
    graphdef, state = nnx.split(original(model))
    return (state, graphdef, *args)


def result_of(made: tuple[Any, Any]) -> Any:
    """Return what the model gives, of what the function that is converted gives."""
    return made[0]


def original(model: Any) -> Any:
    """Return a converted module as what it was; others as they are."""
    if runner_of(model) is None:
        return model
    return with_class(model, model.__class__.__mro__[1])


def children(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in ``module`` by path; itself first."""
    yield "", module
    for path, child in nnx.iter_modules(module):
        if child is not module:
            yield ".".join(map(str, path)), child


def _call(state: Any, graphdef: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what the model gives, and the part of its state that it changed."""
    model = nnx.merge(graphdef, state, copy=True)
    before = _raw(model)
    with named(children(model), children), scope("", holds_modules=True):
        result = model(*args, **kwargs)
    after = nnx.to_flat_state(nnx.state(model))
    now = _raw(model)
    changed = [(p, v) for p, v in after if not _same(now[p], before.get(p))]
    return result, nnx.from_flat_state(changed)


def _states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield the variables that a call changes."""
    del kwargs
    yield from replaced(args[0], made[1])


def _raw(model: Any) -> dict[Any, list[Any]]:
    """Return what each variable holds, by path."""
    flat = nnx.to_flat_state(nnx.state(model))
    return {path: tree.tree_leaves(variable) for path, variable in flat}


def _same(now: list[Any], before: list[Any] | None) -> bool:
    if before is None or len(now) != len(before):
        return False
    return all(a is b for a, b in zip(now, before, strict=True))


def _describe(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Inputs:
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


@functools.cache
def _converted_class(kind: Any) -> Any:
    """Return the class of converted modules of class ``kind``; one for each, ever.

    Flax keeps every class of a module for good, so there is not one for each model.
    """

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        runner: Any = runner_of(self)
        result, changed = runner(*arguments(self, args), **kwargs)
        nnx.update(self, changed)
        return result

    body = class_body(kind, call, runner_of)
    return type(kind)(kind.__name__, (kind,), body, pytree=kind._pytree__is_pytree)  # noqa: SLF001  # how a class says that it is no pytree
