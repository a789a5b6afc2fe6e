"""Convert and inspect JAX functions and modules: trace -> read -> passes -> write."""

from collections.abc import Callable
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.run import ConvertedFunction
from amprewrite.plan import Plan

__all__ = ["Request", "convert", "inspect"]


def convert(model: Callable[..., Any], request: Request) -> Any:
    """Return ``model`` with every op in the precision that its plan gives it."""
    converted = ConvertedFunction(model, request)
    if request.has_arguments:
        converted.prepare(request.args or (), dict(request.kwargs or {}))
    return converted


def inspect(model: Any, request: Request) -> Plan:
    """Return the plan of ``model``; a converted one gives its own."""
    if isinstance(model, ConvertedFunction):
        return model.plan
    if not request.has_arguments:
        msg = "inspect needs args=(...) or kwargs={...} to trace the function with"
        raise UnsupportedError(msg)
    return convert(model, request).plan
