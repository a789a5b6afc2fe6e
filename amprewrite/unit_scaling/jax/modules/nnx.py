"""NNX: a scaled module has state of its own, and runs with factors when called."""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

import functools
from collections.abc import Mapping
from typing import Any

from flax import nnx as flax_nnx

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.modules.conversion import (
    CALL,
    check_is_called,
    method_parameters,
)
from amprewrite.frameworks.jaxpr.modules.nnx import (
    call_on_state,
    describe_state,
    states_of,
)
from amprewrite.unit_scaling.jax.program.rules import Samples
from amprewrite.unit_scaling.jax.program.scaled_function import ScaledFunction
from amprewrite.unit_scaling.jax.weights import unit_init
from amprewrite.unit_scaling.program import Settings

nnx: Any = flax_nnx
"""Untyped view of ``flax.nnx``: its types are partial."""

FUNCTION = "_amprewrite_scaled"
"""Attribute of a scaled module with the function that runs it."""


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
    kind = type(model)
    if FUNCTION in vars(model):
        msg = f"{kind.__name__} is unit-scaled already; scale the plain model"
        raise UnsupportedError(msg)
    check_is_called(kind)
    made = nnx.clone(model)
    if init:
        nnx.update(made, unit_init(nnx.state(made, nnx.Param)))
    function = _function(kind, settings)
    graphdef, state = nnx.split(made)
    function.prepare((state, graphdef, *args), kwargs, is_example=True)
    return _restore(made, function)


def _function(
    kind: Any, settings: Settings, samples: Samples | None = None
) -> ScaledFunction:
    names = ("graphdef", *method_parameters(kind, CALL))
    described = functools.partial(describe_state, names)
    call = functools.partial(call_on_state, CALL)
    return ScaledFunction(call, settings, described, states_of, samples)


def _restore(plain: Any, function: ScaledFunction) -> Any:
    """Return a module of the derived class with the variables of a plain one."""
    made: Any = object.__new__(_scaled_class(type(plain)))
    for name, value in {**vars(plain), FUNCTION: function}.items():
        object.__setattr__(made, name, value)
    return made


def _again(plain: Any, settings: Settings, samples: Samples) -> Any:
    """Scale a module again that was pickled: its class has no name to load."""
    return _restore(plain, _function(type(plain), settings, samples))


def _plain(model: Any, kind: Any) -> Any:
    """Return a module of the model's own class with the variables of a scaled one."""
    made: Any = object.__new__(kind)
    for name, value in vars(model).items():
        if name != FUNCTION:
            object.__setattr__(made, name, value)
    return made


@functools.cache
def _scaled_class(kind: Any) -> Any:
    """Return the class of scaled modules of class ``kind``."""

    @functools.wraps(kind.__call__)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        graphdef, state = nnx.split(_plain(self, kind))
        result, changed = vars(self)[FUNCTION](state, graphdef, *args, **kwargs)
        nnx.update(self, changed)
        return result

    def reduce(self: Any) -> Any:
        function: ScaledFunction = vars(self)[FUNCTION]
        return _again, (_plain(self, kind), function.settings, function.samples)

    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__call__": call,
        "__reduce__": reduce,
    }
    if not hasattr(kind, "scales"):
        body["scales"] = property(lambda self: vars(self)[FUNCTION].scales)
    make = type(kind)
    return make(kind.__name__, (kind,), body, pytree=kind._pytree__is_pytree)  # noqa: SLF001  # how a class says that it is no pytree
