"""Equinox: a converted module has the same leaves, and runs by a plan when called.

Its class is derived from the model's, so that fields, other methods and checks of its
type go on as before. What runs it is a static field: modules made from a converted
one, by an update of its parameters or by ``eqx.tree_at``, are converted too.
"""

import functools
from collections.abc import Iterator
from typing import Any

import equinox

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules.derived import RUNNER, class_body, with_class
from amprewrite.frameworks.jaxpr.modules.functions import calling, states
from amprewrite.frameworks.jaxpr.modules.inputs import describe
from amprewrite.frameworks.jaxpr.run import ConvertedFunction, parameter_names
from amprewrite.frameworks.jaxpr.scopes import scope
from amprewrite.frameworks.jaxpr.trace import part_name
from amprewrite.frameworks.jaxpr.untyped import tree_util

eqx: Any = equinox
tree: Any = tree_util
"""Their types are known in part only."""

STATE: type = eqx.nn.State
"""Class of the containers of state."""

WRAPPERS: tuple[Any, ...] = tuple(
    getattr(eqx, name)(abs).__class__
    for name in ("filter_checkpoint", "filter_grad", "filter_jit", "filter_vmap")
)
"""Classes of what the transformations of Equinox give."""


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` as a module that runs by a plan; a converted one anew."""
    plain = original(model)
    kind = plain.__class__
    converted = with_class(plain, _converted_class(kind))
    described = functools.partial(describe, parameter_names(plain), lambda _: True)
    runner = ConvertedFunction(_call, request, described, states)
    object.__setattr__(converted, RUNNER, runner)
    return converted


def runner_of(model: Any) -> ConvertedFunction | None:
    """Return what runs a converted module; None if it is not converted."""
    return getattr(model, RUNNER, None)


def arguments(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of the function that is converted."""
    return (original(model), *args)


def original(model: Any) -> Any:
    """Return a converted module as what it was; others as they are."""
    if runner_of(model) is None:
        return model
    return with_class(model, type(model).__mro__[1])


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


def _call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    with scope("", holds_modules=True), calling(model, args, kwargs):
        return model(*args, **kwargs)


@functools.cache
def _converted_class(kind: Any) -> Any:
    """Return the class of converted modules of class ``kind``; one for each, ever.

    JAX keeps every class of a pytree for good, so there is not one for each model.
    """

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        runner: Any = runner_of(self)
        return runner(original(self), *args, **kwargs)

    body = class_body(kind, call, runner_of, kind.__dataclass_fields__)
    body["__annotations__"] = {RUNNER: Any}
    body[RUNNER] = eqx.field(static=True, default=None, repr=False)
    return type(kind)(kind.__name__, (kind,), body)
