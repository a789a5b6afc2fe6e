"""Linen: a converted module has ``init``, and an ``apply`` that runs by a plan.

Its class is derived from the model's, with the request as a field, so that clones with
other fields are converted too. Variables are those of the model.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from flax import core as flax_core
from flax import linen
from flax.core.scope import in_filter

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.capture.trace import Pair, part_name, replaced
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    parameter_names,
)
from amprewrite.frameworks.jaxpr.modules.conversion import class_body, plain_class
from amprewrite.frameworks.jaxpr.modules.states import (
    any_narrow,
    describe,
    stored,
    widened,
    without_narrow,
)
from amprewrite.frameworks.jaxpr.program.scopes import scope
from amprewrite.plan import Plan

core: Any = flax_core
nn: Any = linen
"""Untyped view of linen: its types are partial."""

REQUEST = "amprewrite_request"
"""Field with the request of the conversion."""

STATISTICS = "batch_stats"
"""The collection in which layers of Flax store their running statistics."""

RUNNER = "_amprewrite_runner"
"""Attribute with the converted function."""


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` as a module that runs by a new plan."""
    plain = original(model)
    kind = _converted_class(plain.__class__)
    return kind(**_fields(plain), **{REQUEST: request})


def converted_function_of(model: Any) -> ConvertedFunction | None:
    """Return the converted function of a module; None if it is not converted."""
    request: Request | None = getattr(model, REQUEST, None)
    if request is None:
        return None
    found = model.__dict__.get(RUNNER)
    if found is None:
        found = _runner(original(model), request)
        object.__setattr__(model, RUNNER, found)  # linen modules are frozen
    return found


def call_of(model: Any) -> Callable[..., Any]:
    """Return the function that a module is called by, outside of other modules."""
    return model.apply


def plan_of(model: Any) -> Plan:
    """Return the plan of a converted module."""
    found: Any = converted_function_of(model)
    return found.plan


def arguments(model: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the positional arguments of the converted function: those of ``apply``.

    Raises:
        UnsupportedError: The first is no collection of variables.
    """
    if not args or not isinstance(args[0], Mapping):
        found = type(args[0]).__name__ if args else "nothing"
        msg = (
            f"args of {original(model).__class__.__name__} start with {found}; a linen "
            f"module wants those of its apply: (variables, *inputs)"
        )
        raise UnsupportedError(msg)
    return args


def original(model: Any) -> Any:
    """Return the plain module of a converted one; others as they are."""
    if getattr(model, REQUEST, None) is None:
        return model
    fields = {k: v for k, v in _fields(model).items() if k != REQUEST}
    return plain_class(type(model))(**fields)


def _fields(model: Any) -> dict[str, Any]:
    known = model.__dataclass_fields__.items()
    return {name: getattr(model, name) for name, field in known if field.init}


def _runner(plain: Any, request: Request) -> ConvertedFunction:
    promotes = request.processor

    def apply(variables: Any, /, *args: Any, **kwargs: Any) -> Any:
        updates = _updates_statistics(kwargs) and STATISTICS in variables
        if promotes is None or not updates or not any_narrow(variables[STATISTICS]):
            return run(variables, *args, **kwargs)
        before = widened(variables[STATISTICS], promotes)
        given = core.copy(variables, {STATISTICS: before})
        made, changed = run(given, *args, **kwargs)
        after = stored(changed[STATISTICS], before, promotes)
        return made, core.copy(changed, {STATISTICS: after})

    def run(variables: Any, *args: Any, **kwargs: Any) -> Any:
        with nn.intercept_methods(_whole_paths):
            return plain.apply(variables, *args, **kwargs)

    described = functools.partial(
        describe, parameter_names(plain.__call__), lambda path: path[0] == "params"
    )
    return ConvertedFunction(apply, request, described, states)


def states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield the variables that a call changes: the second result of ``apply``."""
    if kwargs.get("mutable", False) is not False:
        before = args[0]
        if _updates_statistics(kwargs):
            before = without_narrow(before, _is_statistic)
        yield from replaced(before, made[1])


def _updates_statistics(kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call may change and return running statistics."""
    return in_filter(kwargs.get("mutable", False), STATISTICS)


def _is_statistic(path: tuple[Any, ...]) -> bool:
    return part_name(path[0]) == STATISTICS


def _whole_paths(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: Any,
) -> Any:
    """Run a method with a path that omits the outermost class and method names.

    Linen names the scopes of all other calls itself.
    """
    path = context.module.path
    with ExitStack() as stack:
        if not path or context.method_name != "__call__":
            stack.enter_context(scope(".".join(path)))
        return run(*args, **kwargs)


class Bound:
    """A converted module with its variables; its methods run by a plan.

    Attributes:
        model: The converted module.
        variables: Its variables.
        rngs: Keys for the random numbers that it draws.
    """

    def __init__(self, model: Any, variables: Any, rngs: Any) -> None:
        self.model, self.variables, self.rngs = model, variables, rngs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.model.apply(self.variables, *args, rngs=self.rngs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a method that runs by a plan, or another attribute of the module."""
        found = getattr(self.model, name)
        if not callable(found):
            return found
        return functools.partial(self, method=name)

    def unbind(self) -> tuple[Any, Any]:
        """Return the module and its variables."""
        return self.model, self.variables


def _apply(self: Any, variables: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run a method of the module by its plan; see ``flax.linen.Module.apply``."""
    runner: Any = converted_function_of(self)
    return runner(variables, *args, **kwargs)


def _bind(
    self: Any, variables: Any, *, rngs: Any = None, mutable: Any = False
) -> Bound:
    """Return the module bound to its variables.

    Raises:
        UnsupportedError: Variables are mutable.
    """
    if mutable:
        msg = (
            "a converted linen module cannot be bound with mutable variables; "
            "call apply(variables, ..., mutable=[...])"
        )
        raise UnsupportedError(msg)
    return Bound(self, variables, rngs)


def _reduce(self: Any) -> Any:
    """Return the parts to pickle: the class is made at run time and has no name."""
    request: Request = getattr(self, REQUEST)
    found = self.__dict__.get(RUNNER)
    plans: list[Plan] = found.plans if found is not None else []
    return convert, (original(self), request.to_pickle(plans[0] if plans else None))


def _post_init(self: Any) -> None:
    """Refuse a converted module where its own apply is never called.

    Raises:
        UnsupportedError: The module is inside another one, or ``flax.linen.apply``
            binds it to variables.
    """
    held = self.parent
    if isinstance(held, core.Scope) and not held.get_flag("initializing", False):
        msg = (
            f"flax.linen.apply binds the converted {type(self).__name__} to its "
            f"variables, and would run it in full precision; call "
            f"converted.apply(variables, *args, method=function), or convert the "
            f"function: amprewrite.convert(flax.linen.apply(function, module))"
        )
        raise UnsupportedError(msg)
    if isinstance(self.parent, nn.Module):
        msg = (
            f"the converted {type(self).__name__} is part of a "
            f"{type(self.parent).__name__}, where it would run in full precision; "
            f"convert the outermost module"
        )
        raise UnsupportedError(msg)
    plain_class(type(self)).__post_init__(self)


@functools.cache
def _converted_class(kind: Any) -> Any:
    """Return the class of converted modules of class ``kind``."""
    body = class_body(kind, converted_function_of)
    shown = {name: body.pop(name) for name in ("plan", "casts") if name in body}
    body |= {
        "__annotations__": {REQUEST: Any},
        REQUEST: dataclasses.field(
            default=None, repr=False, compare=False, kw_only=True
        ),
        "__post_init__": _post_init,
        "__reduce__": _reduce,
        "apply": nn.nowrap(_apply),
        "bind": nn.nowrap(_bind),
    }
    made: Any = type(kind)(kind.__name__, (kind,), body)
    for name, value in shown.items():  # linen would wrap them if they were in the body
        setattr(made, name, value)
    return made
