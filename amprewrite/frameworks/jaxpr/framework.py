"""JAX as the core uses it: see :class:`amprewrite.frameworks.base.Framework`.

The core knows models as objects; here they are checked, and become functions or modules
of JAX, which have no common type.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr import compare, watching
from amprewrite.frameworks.jaxpr import convert as conversion
from amprewrite.frameworks.jaxpr.convert import original, plan_of
from amprewrite.frameworks.jaxpr.devices import samples
from amprewrite.frameworks.jaxpr.function import program_export, pure_function
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.program_export import program_files
from amprewrite.frameworks.jaxpr.probes.calibrate import (
    default_target,
    device_of,
    kernels,
)
from amprewrite.frameworks.jaxpr.probes.calibrate import measure as calibrate
from amprewrite.frameworks.jaxpr.probes.calibrate import named as device_named

__all__ = [
    "ablation",
    "attach",
    "calibrate",
    "convert",
    "default_target",
    "device_named",
    "device_of",
    "graph_text",
    "inspect",
    "kernels",
    "measure",
    "observe",
    "original",
    "plan_of",
    "program_files",
    "samples",
    "save_program",
    "walk",
]


P = ParamSpec("P")
T = TypeVar("T")


def _of_models(function: Callable[P, T], count: int = 1) -> Callable[P, T]:
    """Return ``function`` with its first ``count`` arguments checked.

    It raises :class:`UnsupportedError` for a model that is neither a function nor a
    module.
    """

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for model in args[:count]:
            _check_is_model(model)
        return function(*args, **kwargs)

    return checked


def _check_is_model(found: object) -> None:
    """Check that an object is a function or a module.

    Raises:
        UnsupportedError: It is neither.
    """
    if not callable(found) and adapter_of(found) is None:
        msg = (
            f"found a {type(found).__name__}; want a function of JAX arrays, or a "
            f"module of Equinox or Flax"
        )
        raise UnsupportedError(msg)


convert = _of_models(conversion.convert)
inspect = _of_models(conversion.inspect)
measure = _of_models(compare.measure, 2)
walk = _of_models(compare.walk, 2)
ablation = compare.ablation
attach = _of_models(watching.attach)
observe = _of_models(watching.observe)
graph_text = _of_models(pure_function.graph_text)
save_program = _of_models(program_export.save_program)
