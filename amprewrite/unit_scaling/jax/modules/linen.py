"""Linen: a scaled module has an ``apply`` with factors, and ``init`` of unit scale."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from flax import core, linen

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.function.converted_function import parameter_names
from amprewrite.frameworks.jaxpr.modules.linen import arguments, states
from amprewrite.frameworks.jaxpr.modules.states import describe
from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.jax.program.rules import Samples
from amprewrite.unit_scaling.jax.program.scaled_function import ScaledFunction
from amprewrite.unit_scaling.jax.weights import unit_init
from amprewrite.unit_scaling.program import Settings

nn: Any = linen
"""Untyped view of linen: its types are partial."""

SCALING = "amprewrite_scaling"
"""Field of a scaled module with its options; clones keep it."""
FUNCTION = "_amprewrite_scaled"
"""Attribute with the function that runs it."""
PLAIN = "amprewrite_unscaled"
"""Attribute of a scaled class that holds the class of the model."""
PARAMETERS = "params"


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Options of a scaled module.

    Attributes:
        settings: Options of the pass.
        init: Whether ``init`` gives parameters of unit scale.
        samples: Rules that were measured, which clones share.
    """

    settings: Settings
    init: bool
    samples: Samples = dataclasses.field(default_factory=dict[Any, UnitRule])


def unit_scale(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Settings,
    *,
    init: bool,
) -> Any:
    """Return a scaled module; see :func:`amprewrite.unit_scale`.

    Raises:
        UnsupportedError: It is scaled already, or the first of ``args`` is no
            collection of variables.
    """
    if getattr(model, SCALING, None) is not None:
        msg = f"{type(model).__name__} is unit-scaled already; scale the plain model"
        raise UnsupportedError(msg)
    made: Any = _restore(model, Scaling(settings, init))
    _function(made).prepare(arguments(model, args), kwargs, is_example=True)
    return made


def _restore(plain: Any, scaling: Scaling) -> Any:
    """Return a module of the derived class with the fields of a plain one."""
    return _scaled_class(plain.__class__)(**_fields(plain), **{SCALING: scaling})


def plain_class(kind: Any) -> Any:
    """Return the model's own class of a scaled class; other classes as they are."""
    return getattr(kind, PLAIN, kind)


def _fields(model: Any) -> dict[str, Any]:
    """Return the fields of the model's own class."""
    known = plain_class(type(model)).__dataclass_fields__.items()
    return {name: getattr(model, name) for name, field in known if field.init}


def _plain(model: Any) -> Any:
    """Return a module of the model's own class with the fields of a scaled one."""
    return plain_class(type(model))(**_fields(model))


def _function(model: Any) -> ScaledFunction:
    """Return the function that runs a module; it is made at the first use."""
    found = model.__dict__.get(FUNCTION)
    if found is None:
        plain = _plain(model)

        def apply(variables: Any, /, *args: Any, **kwargs: Any) -> Any:
            return plain.apply(variables, *args, **kwargs)

        described = functools.partial(
            describe,
            parameter_names(plain.__call__),
            lambda path: path[0] == PARAMETERS,
        )
        held: Scaling = getattr(model, SCALING)
        found = ScaledFunction(apply, held.settings, described, states, held.samples)
        object.__setattr__(model, FUNCTION, found)  # linen modules are frozen
    return found


def _apply(self: Any, variables: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run a method of the module with factors; see ``flax.linen.Module.apply``."""
    return _function(self)(variables, *args, **kwargs)


def _init(self: Any, rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the variables of the plain module, its parameters of unit scale."""
    found = _plain(self).init(rngs, *args, **kwargs)
    if not getattr(self, SCALING).init or PARAMETERS not in found:
        return found
    return {**found, PARAMETERS: unit_init(found[PARAMETERS])}


def _post_init(self: Any) -> None:
    """Refuse a scaled module where its own apply is never called.

    Raises:
        UnsupportedError: The module is inside another one, or bound to variables.
    """
    if isinstance(self.parent, core.Scope):
        msg = (
            f"the unit-scaled {type(self).__name__} is bound to variables, and would "
            f"run without factors; call its init, then its apply with method="
        )
        raise UnsupportedError(msg)
    if isinstance(self.parent, nn.Module):
        msg = (
            f"the unit-scaled {type(self).__name__} is part of a "
            f"{type(self.parent).__name__}, where it would run without factors; "
            f"scale the outermost module"
        )
        raise UnsupportedError(msg)
    plain_class(type(self)).__post_init__(self)


def _reduce(self: Any) -> Any:
    """Return the parts to pickle: the class is made at run time and has no name."""
    return _restore, (_plain(self), getattr(self, SCALING))


@functools.cache
def _scaled_class(kind: Any) -> Any:
    """Return the class of scaled modules of class ``kind``."""
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__annotations__": {SCALING: Any},
        SCALING: dataclasses.field(
            default=None, repr=False, compare=False, kw_only=True
        ),
        "__post_init__": _post_init,
        "__reduce__": _reduce,
        "apply": nn.nowrap(_apply),
        "init": nn.nowrap(_init),
    }
    made: Any = type(kind)(kind.__name__, (kind,), body)
    # linen would wrap it if it were in the body
    setattr(made, PLAIN, kind)
    if not hasattr(kind, "scales") and "scales" not in kind.__dataclass_fields__:
        made.scales = property(lambda self: _function(self).scales)
    return made
