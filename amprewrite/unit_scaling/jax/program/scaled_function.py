"""A scaled function: traced and analysed once for each signature."""

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.jaxpr.capture.closures import Closed
from amprewrite.frameworks.jaxpr.capture.trace import (
    Pair,
    Traced,
    Tracer,
    as_array,
    input_names,
    positions,
    split,
)
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.convert import converted_function_of
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.converted_function import (
    Describe,
    States,
    no_states,
    parameter_names,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs
from amprewrite.unit_scaling.jax.program.insert import Scaled, insert_scales
from amprewrite.unit_scaling.jax.program.rules import Known, Samples
from amprewrite.unit_scaling.program import Settings

if TYPE_CHECKING:
    from amprewrite.ir.graph import ValueKind
    from amprewrite.unit_scaling.graph.scales import ScalePlan


KEPT = 128
"""Largest number of programs of one function that are kept; the oldest go first."""


class ScaledFunction:
    """A function with unit scaling; it composes with every transformation of JAX.

    Attributes:
        function: The plain function.
        settings: How it is scaled.
        scales: The scale plan of the program that ran last.
        samples: Rules that were measured, which all programs share.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Settings,
        describe: Describe | None = None,
        states: States = no_states,
        samples: Samples | None = None,
    ) -> None:
        """Wrap a function; nothing is traced before the first call.

        Args:
            function: The function.
            settings: How to scale.
            describe: Names the inputs and their kinds; by default the arrays of the
                first argument are parameters.
            states: Finds the states among arguments and results.
            samples: Rules that were measured before, of a function that was pickled.
        """
        self.function, self.settings = function, settings
        self.describe = describe or self._first_is_parameters
        self.states = states
        self.samples: Samples = {} if samples is None else samples
        self.closed = Closed(function, adapter_of)
        self.scales: ScalePlan | None = None
        self._forget()
        functools.update_wrapper(self, function, updated=())

    def _forget(self) -> None:
        self.tracer = Tracer(self.function)
        self.found: dict[Any, Scaled] = {}

    def __deepcopy__(self, _: Any) -> "ScaledFunction":
        """Return ``self``: copies of a module share the functions that run them."""
        return self

    def __reduce__(self) -> Any:
        """Pickle the function and the settings; programs are traced anew."""
        parts = (self.function, self.settings, None, no_states, self.samples)
        return ScaledFunction, parts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with its factors."""
        scaled, result, arrays = self.prepare(args, kwargs)
        return result.arguments(scaled.writer(arrays))

    def prepare(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_example: bool = False,
    ) -> tuple[Scaled, Any, list[Any]]:
        """Return the program for a call, how its outputs are built, and its arrays.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            is_example: Whether masks among them are those that rules count.

        Raises:
            CaptureError: The function cannot be traced, or changes closed-over state.
            UnitScalingError: An op has no rule.
        """
        if self.closed.changed() is not None:
            self._forget()
        traced = self.tracer.trace(args, kwargs)
        if (name := self.closed.leaked()) is not None:
            msg = (
                f"the function changes {name}, which it closes over, while it is "
                "traced; want a function that takes its state and gives it back"
            )
            raise CaptureError(msg)
        _, arrays = split((tuple(args), dict(kwargs)))
        key = traced.closed.jaxpr
        scaled = self.found.get(key)
        if scaled is None:
            known = self.describe(args, kwargs)
            name_of = known.names.__getitem__
            scaled = insert_scales(
                traced.closed,
                name_of,
                known.kinds,
                self.settings,
                tuple(self._states(traced, args, kwargs)),
                Known(self.samples, arrays if is_example else ()),
            )
            if traced.reusable:
                self.found[key] = scaled
                if len(self.found) > KEPT:
                    del self.found[next(iter(self.found))]
        self.scales = scaled.scales
        return scaled, traced.result, arrays

    def _states(
        self, traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[Pair]:
        call, arrays = split((tuple(args), dict(kwargs)))
        taken, named = positions(call, list(map(as_array, arrays)))
        return self.states(taken, named, positions(traced.result))

    def _first_is_parameters(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Inputs:
        names = input_names((tuple(args), dict(kwargs)), parameter_names(self.function))
        _, first = split(args[:1])
        kinds: dict[int, ValueKind] = {
            index: "parameter"
            for index, x in enumerate(first)
            if jnp.issubdtype(x.dtype, jnp.floating)
        }
        return Inputs(names, kinds)


# The scaled form of a function or module of JAX: of the same kind.


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
