"""Models as pure functions of arrays, with their programs, for verification."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.capture.trace import (
    Call,
    Traced,
    Tracer,
    input_names,
    split,
)
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    parameter_names,
    whole,
)
from amprewrite.frameworks.jaxpr.interpret.contractions import contraction_p
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs, Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Result
from amprewrite.frameworks.jaxpr.probes.runner import float_positions, trained_positions
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir.text import outline
from amprewrite.measure.runs import Call as Asked

NO_PLANNER: Any = None
"""The planner of a module that is converted for its function and never run."""


@dataclass(frozen=True)
class Pure:
    """A model as a pure function, with the arguments to call it with.

    Attributes:
        function: The function.
        args: Positional arguments, the parameters of a module among them.
        kwargs: Keyword arguments.
        inputs: Names and kinds of the arrays.
        converted: The converted function inside; None for an original.
        result_of: Selects the compared part of the function's result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: Inputs
    converted: ConvertedFunction | None = None
    result_of: Callable[[Any], Any] = whole


def pure(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pure:
    """Return ``model`` as a pure function.

    An original and its converted form give functions of the same arrays.
    """
    adapter = adapter_of(model)
    if adapter is not None:
        return _of_module(adapter, model, args, kwargs)
    held = getattr(model, "__wrapped__", None)  # of jax.jit around a converted one
    found = model if isinstance(model, ConvertedFunction) else held
    converted = found if isinstance(found, ConvertedFunction) else None
    names = input_names((args, dict(kwargs)), parameter_names(model))
    return Pure(model, args, kwargs, Inputs(names), converted)


def _of_module(
    adapter: Any, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Pure:
    """Return a module as a pure function by its adapter."""
    converted: ConvertedFunction | None = adapter.converted_function_of(model)
    asked = Request(planner=NO_PLANNER)
    runner: Any = converted or adapter.converted_function_of(
        adapter.convert(model, asked)
    )
    function = converted or runner.function
    given = adapter.arguments(model, args)
    inputs = runner.describe(given, kwargs)
    pick = getattr(adapter, "result_of", whole)
    return Pure(function, given, kwargs, inputs, converted, pick)


@dataclass(frozen=True)
class Subject:
    """A pure function and one call of it, as arrays.

    Attributes:
        pure: The function and its arguments.
        call: The arguments without their arrays.
        arrays: The arrays.
    """

    pure: Pure
    call: Call
    arrays: tuple[Any, ...]

    def flat(self, *arrays: Any) -> Any:
        """Return the result of the function on ``arrays``."""
        args, kwargs = self.call.arguments(arrays)
        return self.pure.result_of(self.pure.function(*args, **kwargs))

    def built(self, outputs: list[Any]) -> Any:
        """Return the result of the function, built from the outputs of its program."""
        return self.pure.result_of(self._traced.result.arguments(outputs))

    @property
    def result(self) -> Result:
        """The structure of the function's result."""
        return Result(self._traced.result, self.pure.result_of)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return self.pure.inputs.names

    @property
    def trained(self) -> tuple[int, ...]:
        """Positions of the parameters of a module, or of all floats of a function."""
        return trained_positions(self.arrays, self.pure.inputs.kinds)

    @property
    def inputs(self) -> frozenset[int]:
        """Positions of the arrays that are arguments, no parts of a module."""
        kinds = self.pure.inputs.kinds
        return frozenset(i for i in range(len(self.arrays)) if i not in kinds)

    @property
    def compared(self) -> tuple[int, ...]:
        """Positions of the arrays that gradients are compared for.

        They are the trained ones, and the float inputs of a module.
        """
        wanted = {*self.trained, *self.inputs}
        return tuple(i for i in float_positions(self.arrays) if i in wanted)

    @cached_property
    def _traced(self) -> Traced:
        return Tracer(self.pure.function).trace(self.pure.args, self.pure.kwargs)

    @cached_property
    def program(self) -> Program:
        """The program."""
        return inline(self._traced.closed, self.names.__getitem__)

    def shown(self) -> Program:
        """Return the program with our contraction primitives inlined."""
        converted = frozenset((contraction_p.name,))
        return inline(self._traced.closed, self.names.__getitem__, converted)


def subject_of(model: Any, asked: Asked) -> Subject:
    """Return ``model`` and its given arguments as a subject."""
    found = pure(model, asked.args, asked.kwargs)
    call, arrays = split((found.args, dict(found.kwargs)))
    return Subject(found, call, tuple(arrays))


def prepared_of(model: Any, asked: Asked) -> Prepared | None:
    """Return the program and the plan that ``model`` runs by; None without one."""
    found = pure(model, asked.args, asked.kwargs)
    if found.converted is None:
        return None
    return found.converted.prepare(found.args, found.kwargs)[0]


def graph_text(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return ``model``, as it is or converted, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be traced.
    """
    return outline(read(subject_of(model, Asked(args, kwargs)).shown(), {}))
