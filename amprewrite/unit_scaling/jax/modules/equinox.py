"""Equinox: a scaled module has the same leaves, and runs with factors when called."""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from collections.abc import Mapping
from typing import Any

import equinox

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.capture.trace import is_array
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.function.adapters import calling, states
from amprewrite.frameworks.jaxpr.modules.conversion import (
    CALL,
    check_is_called,
    method_parameters,
)
from amprewrite.frameworks.jaxpr.modules.states import describe
from amprewrite.frameworks.jaxpr.program.scopes import scope
from amprewrite.unit_scaling.jax.program.insert import Scaled
from amprewrite.unit_scaling.jax.program.rules import Samples
from amprewrite.unit_scaling.jax.program.scaled_function import ScaledFunction
from amprewrite.unit_scaling.jax.weights import unit_init
from amprewrite.unit_scaling.program import Settings

eqx: Any = equinox
"""Untyped view of Equinox: its types are partial."""

FUNCTION = "amprewrite_scaled"
"""Static field of a scaled module with the function that runs it."""


def unit_scale(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Settings,
    *,
    init: bool,
) -> Any:
    """Return a scaled copy of a module; see :func:`amprewrite.unit_scale`.

    Raises:
        UnsupportedError: It is scaled already, or has no ``__call__``.
    """
    if hasattr(model, FUNCTION):
        msg = f"{type(model).__name__} is unit-scaled already; scale the plain model"
        raise UnsupportedError(msg)
    check_is_called(type(model))
    function = _function(type(model), settings)
    scaled, *_ = function.prepare((model, *args), kwargs, is_example=True)
    plain = _initialised(model, scaled) if init else model
    return _scaled(plain, function)


def _initialised(model: Any, scaled: Scaled) -> Any:
    """Return a module with weights of unit scale; tables without a gradient stay."""
    leaves, structure = tree.tree_flatten(model)
    names = iter(scaled.inputs)
    made = [
        new if is_array(old) and next(names) in scaled.live else old
        for old, new in zip(leaves, tree.tree_leaves(unit_init(model)), strict=True)
    ]
    return tree.tree_unflatten(structure, made)


def _function(
    kind: Any, settings: Settings, samples: Samples | None = None
) -> ScaledFunction:
    names = method_parameters(kind, CALL)
    described = functools.partial(describe, names, lambda _: True)
    return ScaledFunction(_call, settings, described, states, samples)


def _call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    with scope("", holds_modules=True), calling(model, args, kwargs):
        return model(*args, **kwargs)


def _scaled(plain: Any, function: ScaledFunction) -> Any:
    """Return a module of the derived class with the fields of a plain one."""
    made: Any = object.__new__(_scaled_class(type(plain)))
    for name, value in {**vars(plain), FUNCTION: function}.items():
        object.__setattr__(made, name, value)
    return made


def _plain(model: Any, kind: Any) -> Any:
    """Return a module of the model's own class with the fields of a scaled one."""
    made: Any = object.__new__(kind)
    for name, value in vars(model).items():
        if name != FUNCTION:
            object.__setattr__(made, name, value)
    return made


def _restore(plain: Any, settings: Settings, samples: Samples) -> Any:
    """Scale a module again that was pickled: its class has no name to load."""
    return _scaled(plain, _function(type(plain), settings, samples))


@functools.cache
def _scaled_class(kind: Any) -> Any:
    """Return the class of scaled modules of class ``kind``; JAX keeps each forever."""

    @functools.wraps(kind.__call__)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, FUNCTION)(_plain(self, kind), *args, **kwargs)

    def reduce(self: Any) -> Any:
        function: ScaledFunction = getattr(self, FUNCTION)
        parts = _plain(self, kind), function.settings, function.samples
        return _restore, parts

    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__annotations__": {FUNCTION: Any},
        "__call__": call,
        "__reduce__": reduce,
        FUNCTION: eqx.field(static=True, default=None, repr=False),
    }
    if not hasattr(kind, "scales") and "scales" not in kind.__dataclass_fields__:
        body["scales"] = property(lambda self: getattr(self, FUNCTION).scales)
    return type(kind)(kind.__name__, (kind,), body)
