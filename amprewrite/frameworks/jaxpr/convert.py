"""Convert and inspect JAX functions and modules: trace, read, plan, write."""

from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request, refuse_plan
from amprewrite.frameworks.jaxpr.capture.closures import Closed, is_keras
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of, naming, states
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    Shared,
)
from amprewrite.plan import Plan

__all__ = ["Request", "convert", "converted_function_of", "inspect"]


def convert(model: Any, request: Request) -> Any:
    """Return ``model`` with every op in the precision that its plan gives it.

    Raises:
        UnsupportedError: ``dynamic_shapes`` is given, or a plan without arguments.
    """
    _refuse_shapes(request)
    if not request.has_arguments:
        refuse_plan(request)
    return again(model, request)


def again(model: Any, request: Request) -> Any:
    """Convert a copy of a model that was converted, with the plan of the first."""
    return _converted(model, request, announces=True)


def inspect(model: Any, request: Request) -> Plan:
    """Return the plan of ``model``; for a converted one, its own.

    Raises:
        NotCapturedError: ``model`` is converted, and was not called yet.
        UnsupportedError: No arguments are given to trace the model with, or
            ``dynamic_shapes`` is.
    """
    _refuse_shapes(request)
    if converted_function_of(model) is not None:
        return plan_of(model)
    if not request.has_arguments:
        msg = "inspect needs args=(...) or kwargs={...} to trace the model with"
        raise UnsupportedError(msg)
    made: Any = converted_function_of(_converted(model, request, announces=False))
    return made.plan


def plan_of(model: Any) -> Plan:
    """Return the plan of a converted function or module, bare or under ``jax.jit``.

    Raises:
        NotCapturedError: It was not called yet.
        UnsupportedError: It is not converted.
    """
    found = model
    while converted_function_of(found) is None and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    if converted_function_of(found) is None:
        msg = (
            f"found a {type(model).__name__} without a plan; want a result of "
            f"amprewrite.convert, or such a one under jax.jit or jax.grad"
        )
        raise UnsupportedError(msg)
    adapter = adapter_of(found)
    return found.plan if adapter is None else adapter.plan_of(found)


def _refuse_shapes(request: Request) -> None:
    """Refuse ``dynamic_shapes``: JAX traces a function for each shape.

    Raises:
        UnsupportedError: They are given.
    """
    if request.dynamic_shapes is not None:
        msg = (
            "dynamic_shapes= is for torch.export; JAX traces a function anew for each "
            "shape, or once for all with jax.export.symbolic_shape: leave it out"
        )
        raise UnsupportedError(msg)


def converted_function_of(model: Any) -> ConvertedFunction | None:
    """Return the converted function of a function or module; None for others."""
    if isinstance(model, ConvertedFunction):
        return model
    adapter = adapter_of(model)
    return adapter.converted_function_of(model) if adapter is not None else None


def original(model: Any) -> Any:
    """Return the plain function or module of a converted one; others as they are.

    A function may be under ``jax.jit``; the plain one is not. A module has the current
    weights of the converted one.
    """
    held = getattr(model, "__wrapped__", None)  # of jax.jit around a converted one
    found = held if isinstance(held, ConvertedFunction) else model
    if isinstance(found, ConvertedFunction):
        return found.closed.function if found.closed else found.function
    adapter = adapter_of(model)
    return model if adapter is None else adapter.original(model)


def _check_is_function(model: Any) -> None:
    """Check that ``model`` does not hold state that JAX cannot see.

    Raises:
        UnsupportedError: It is a layer or a model of Keras, or a method of one.
    """
    owner = getattr(model, "__self__", model)
    if is_keras(owner) and getattr(model, "__name__", "") != "stateless_call":
        name = type(owner).__name__
        msg = (
            f"found {name}, of Keras, which keeps its variables in itself: a trace of "
            f"it would hold those of now for ever; want its stateless_call, which "
            f"takes them: convert(model.stateless_call), called as "
            f"converted([v.value for v in model.trainable_variables], "
            f"[v.value for v in model.non_trainable_variables], *inputs)"
        )
        raise UnsupportedError(msg)


def _converted(model: Any, request: Request, *, announces: bool) -> Any:
    _check_is_function(model)
    adapter = adapter_of(model)
    converted = (
        ConvertedFunction(
            naming(model),
            request,
            states=states,
            shared=Shared(request, Closed(model, adapter_of), again),
        )
        if adapter is None
        else adapter.convert(model, request)
    )
    runner: Any = converted_function_of(converted)
    runner.announces = announces
    if request.has_arguments:
        args = request.args or ()
        given = args if adapter is None else adapter.arguments(converted, args)
        runner.prepare(given, dict(request.kwargs or {}))
    runner.announces = True
    return converted
