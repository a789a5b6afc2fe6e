"""Convert and inspect JAX functions and modules: trace -> read -> passes -> write."""

from collections.abc import Callable
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules import adapter_of
from amprewrite.frameworks.jaxpr.modules.functions import naming, states
from amprewrite.frameworks.jaxpr.run import ConvertedFunction
from amprewrite.plan import Plan

__all__ = ["Request", "convert", "inspect", "runner_of"]


def convert(model: Callable[..., Any], request: Request) -> Any:
    """Return ``model`` with every op in the precision that its plan gives it."""
    return _converted(model, request, announces=True)


def inspect(model: Any, request: Request) -> Plan:
    """Return the plan of ``model``; a converted one gives its own.

    Raises:
        NotCapturedError: ``model`` is converted, and was not called yet.
        UnsupportedError: No arguments are given to trace the model with.
    """
    runner = runner_of(model)
    if runner is not None:
        return runner.plan
    if not request.has_arguments:
        msg = "inspect needs args=(...) or kwargs={...} to trace the model with"
        raise UnsupportedError(msg)
    made: Any = runner_of(_converted(model, request, announces=False))
    return made.plan


def runner_of(model: Any) -> ConvertedFunction | None:
    """Return what runs a converted function or module; None if it is not converted."""
    if isinstance(model, ConvertedFunction):
        return model
    adapter = adapter_of(model)
    return adapter.runner_of(model) if adapter is not None else None


def _converted(model: Any, request: Request, *, announces: bool) -> Any:
    adapter = adapter_of(model)
    converted = (
        ConvertedFunction(naming(model), request, states=states)
        if adapter is None
        else adapter.convert(model, request)
    )
    runner: Any = runner_of(converted)
    runner.announces = announces
    if request.has_arguments:
        args = request.args or ()
        given = args if adapter is None else adapter.arguments(converted, args)
        runner.prepare(given, dict(request.kwargs or {}))
    runner.announces = True
    return converted
