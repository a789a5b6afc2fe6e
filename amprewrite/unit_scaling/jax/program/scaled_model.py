"""The scaled form of a function or module of JAX: of the same kind."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.convert import converted_function_of
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.unit_scaling.jax.program.scaled_function import ScaledFunction
from amprewrite.unit_scaling.settings import Settings


def unit_scale(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Settings,
    *,
    init: bool,
) -> Any:
    """Return a scaled function or module; see :func:`amprewrite.unit_scale`.

    Raises:
        CaptureError: It cannot be traced.
        UnitScalingError: An op has no rule.
        UnsupportedError: It is converted or scaled already.
    """
    if converted_function_of(model) is not None:
        msg = (
            f"{type(model).__name__} is converted already; scale the plain one, and "
            "convert the result: amprewrite.convert(amprewrite.unit_scale(model, ...))"
        )
        raise UnsupportedError(msg)
    if isinstance(model, ScaledFunction):
        msg = "the function is unit-scaled already; scale the plain one"
        raise UnsupportedError(msg)
    adapter = adapter_of(model)
    if adapter is not None:
        library = str(adapter.__name__).rpartition(".")[2]
        module = import_module(f"amprewrite.unit_scaling.jax.modules.{library}")
        return module.unit_scale(model, args, kwargs, settings, init=init)
    # The parameters of a function are arguments: unit_init is for them.
    scaled = ScaledFunction(model, settings)
    scaled.prepare(args, kwargs, is_example=True)
    return scaled
