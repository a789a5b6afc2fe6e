"""A converted function: traced and planned once for each signature; run by its plan."""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.base import Request, announce
from amprewrite.frameworks.jaxpr.differential import Second
from amprewrite.frameworks.jaxpr.exact import Result
from amprewrite.frameworks.jaxpr.prepare import Inputs, Prepared, Search, prepare
from amprewrite.frameworks.jaxpr.program import Program
from amprewrite.frameworks.jaxpr.promoting import tracing
from amprewrite.frameworks.jaxpr.states import Pair, positions
from amprewrite.frameworks.jaxpr.tolerance import Tolerant, sample_of
from amprewrite.frameworks.jaxpr.trace import Traced, Tracer, input_names, split
from amprewrite.ir import ProgramGraph
from amprewrite.plan import Cast, Plan
from amprewrite.plan.join import join_plans

CAPTURED = "traced by JAX"
"""How a function is captured."""

Describe = Callable[[tuple[Any, ...], Mapping[str, Any]], Inputs]
"""Names the arrays among call arguments, and says which of them are parameters."""


States = Callable[[tuple[Any, ...], Mapping[str, Any], Any], Iterator[Pair]]
"""Says which outputs are states, of the positions in arguments and results."""


def no_states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield nothing: a function does not say what is its state."""
    del args, kwargs, made
    yield from ()


def whole(made: Any) -> Any:
    """Return all that a function gives: it is what the user sees."""
    return made


class ConvertedFunction:
    """A function that runs by a plan; it composes with every transformation of JAX."""

    def __init__(
        self,
        function: Callable[..., Any],
        request: Request,
        describe: Describe | None = None,
        states: States = no_states,
        result_of: Callable[[Any], Any] = whole,
    ) -> None:
        """Hold the function.

        Args:
            function: The function.
            request: What the user asked for.
            describe: Describes the inputs; by default they are named as ``function``
                names its parameters, and none is trained.
            states: Finds the states among what it takes and gives.
            result_of: Picks what the user sees of what ``function`` gives.
        """
        self.function, self.request = function, request
        self.describe, self.states = describe or self._as_named, states
        self.result_of = result_of
        self.tolerant = Tolerant(request.budget, CAPTURED) if request.budget else None
        self.tracer = Tracer(function, request.processor)
        self.prepared: weakref.WeakKeyDictionary[Any, Prepared] = (
            weakref.WeakKeyDictionary()
        )
        self.kept: list[Any] = []
        self.announced: set[str] = set()
        self.announces = True
        functools.update_wrapper(self, function, updated=())

    def __deepcopy__(self, _: Any) -> "ConvertedFunction":
        """Return itself, as functions do: copies of a module share what runs them."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function by its plan."""
        prepared, result, arrays = self.prepare(args, kwargs)
        if not prepared.plan.changes:  # but perhaps numbers, which are no values
            with tracing(self.request.processor):
                return self.function(*args, **kwargs)
        return result.arguments(prepared.run(arrays))

    def prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Prepared, Any, list[Any]]:
        """Return the program for a call, how its outputs are built, and its arrays."""
        traced = self.tracer.trace(args, kwargs)
        _, arrays = split((tuple(args), dict(kwargs)))
        key = traced.closed.jaxpr
        found = self.prepared.get(key)
        if found is None:
            found = self._plan(traced, args, kwargs)
            if traced.reusable:
                self.prepared[key] = found
                self.kept.append(key)
        return found, traced.result, arrays

    def _plan(
        self, traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Prepared:
        first = not self.kept
        known = self.describe(args, kwargs)
        if low := self.request.low:
            again = partial(self.tracer.trace_low, args, kwargs, low)
            known = replace(known, second=Second(self.tracer.casts, again, low))
        if self.request.processor is not None:
            states = tuple(self._states(traced, args, kwargs))
            known = replace(known, states=states, processor=self.request.processor)
        if self.tolerant is not None:
            known = replace(known, search=self._search(traced, args, kwargs))
        made = prepare(
            traced.closed,
            self.request.planner,
            known,
            self.request.plan if first else None,
            training=self.request.training is not False,
            captured=CAPTURED,
        )
        if self.announces:
            announce(made.plan, self.announced)
        return made

    def _search(
        self, traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Search:
        _, arrays = split((tuple(args), dict(kwargs)))
        result = Result(traced.result, self.result_of)
        tolerant: Any = self.tolerant

        def search(program: Program, graph: ProgramGraph, build: Any) -> Plan:
            return tolerant.plan(sample_of(program, graph, arrays, result), build)

        return search

    def _states(
        self, traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[Pair]:
        call, _ = split((tuple(args), dict(kwargs)))
        taken, named = positions(call)
        return self.states(taken, named, positions(traced.result))

    def _as_named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        names = parameter_names(self.function)
        return Inputs(input_names((tuple(args), dict(kwargs)), names))

    @property
    def plan(self) -> Plan:
        """The plan; those of several signatures as one.

        Raises:
            NotCapturedError: The function was not called yet.
        """
        plans = [self.prepared[key].plan for key in self.kept if key in self.prepared]
        if not plans:
            msg = (
                "the function has no plan yet, because it is traced at its first call; "
                "call it, or convert it with args=(...)"
            )
            raise NotCapturedError(msg)
        return join_plans(plans)

    @property
    def casts(self) -> tuple[Cast, ...]:
        """The casts of :attr:`plan`."""
        return self.plan.casts


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of ``function`` that have a position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)
