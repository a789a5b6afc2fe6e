"""A converted function: traced and planned once for each signature; run by its plan."""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from amprewrite.errors import (
    CaptureError,
    NotCapturedError,
    UnsupportedError,
    warn,
)
from amprewrite.frameworks.base import Request, announce
from amprewrite.frameworks.jaxpr.capture.cast_intent import Second
from amprewrite.frameworks.jaxpr.capture.closures import Closed
from amprewrite.frameworks.jaxpr.capture.promotion import tracing
from amprewrite.frameworks.jaxpr.capture.trace import (
    Pair,
    Traced,
    Tracer,
    Varying,
    as_array,
    input_names,
    numbers,
    positions,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import (
    Inputs,
    Prepared,
    Search,
    prepare,
)
from amprewrite.frameworks.jaxpr.probes.full_precision import Result
from amprewrite.frameworks.jaxpr.probes.run_check import run_check
from amprewrite.frameworks.jaxpr.probes.runner import trained_positions
from amprewrite.frameworks.jaxpr.probes.tolerance import Tolerant, sample_of
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.ir import ProgramGraph
from amprewrite.plan import Cast, Plan
from amprewrite.plan.join import join_plans

KEPT = 128
"""Largest number of programs of one function that are kept; the oldest go first."""

CAPTURED = "traced by JAX"
"""Description, in a plan, of the capture of a function."""

Describe = Callable[[tuple[Any, ...], Mapping[str, Any]], Inputs]
"""Function that describes the arrays among call arguments: names and kinds."""


States = Callable[[tuple[Any, ...], Mapping[str, Any], Any], Iterator[Pair]]
"""Function that yields the outputs that are states, from arguments and results."""


def no_states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield nothing: the states of a plain function are unknown."""
    del args, kwargs, made
    yield from ()


def whole(made: Any) -> Any:
    """Return the result unchanged: all of it is for the user."""
    return made


class Shared:
    """State shared by the functions of one conversion.

    Attributes:
        request: The request of the conversion.
        tolerant: Search for a plan within a tolerance; None without one.
        announced: Lines of plans that were already shown to the user.
        given: Plan given by the user, until the first program has used it.
        closed: Detects changes of closed-over values; None for a function of its
            arguments alone.
        restore: Converts the function again when it is unpickled.
    """

    def __init__(
        self,
        request: Request,
        closed: Closed | None = None,
        restore: Callable[[Any, Request], Any] | None = None,
    ) -> None:
        """Store the request, with no plan announced yet."""
        self.request, self.closed, self.restore = request, closed, restore
        budget, target = request.budget, request.target
        trains = request.training is True
        self.tolerant = (
            Tolerant(budget, CAPTURED, target, trains=trains) if budget else None
        )
        self.announced = set[str]()
        self.given = request.plan


class ConvertedFunction:
    """A function that runs by a plan; it composes with every transformation of JAX."""

    def __init__(
        self,
        function: Callable[..., Any],
        request: Request,
        describe: Describe | None = None,
        states: States = no_states,
        result_of: Callable[[Any], Any] = whole,
        shared: Shared | None = None,
    ) -> None:
        """Wrap the function; nothing is traced before the first call.

        Args:
            function: The function.
            request: The request of the conversion.
            describe: Describes the inputs; by default they are named as ``function``
                names its parameters, and none is trained.
            states: Finds the states among arguments and results.
            result_of: Selects the user's part of the result of ``function``.
            shared: State shared with other functions of the same conversion.
        """
        self.function, self.request = function, request
        self.shared = shared or Shared(request)
        self.closed = self.shared.closed
        self.describe, self.states = describe or self._as_named, states
        self.result_of = result_of
        self.tolerant = self.shared.tolerant
        self._forget()
        self.varying = Varying()
        self.announces = True
        self.is_quiet = False  # announces nothing of programs that are left as they are
        functools.update_wrapper(self, function, updated=())

    def __deepcopy__(self, _: Any) -> "ConvertedFunction":
        """Return ``self``: copies of a module share the functions that run them."""
        return self

    def __reduce__(self) -> Any:
        """Return the importable name of the function, if it has one, else its parts.

        Raises:
            UnsupportedError: It is the method of a converted module, to be pickled.
        """
        if self.closed is None or self.shared.restore is None:
            msg = "this runs a method of a converted module; pickle the module"
            raise UnsupportedError(msg)
        name = str(getattr(self, "__qualname__", ""))
        if is_at(self.__module__, name, self):
            return name
        plan = self.plans[0] if self.plans else None
        request = self.request.to_pickle(plan)
        return self.shared.restore, (self.closed.function, request)

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
        """Return the program for a call, how its outputs are built, and its arrays.

        Raises:
            CaptureError: The function cannot be traced, or changes closed-over state.
        """
        if self.closed is not None and (name := self.closed.changed()) is not None:
            self._trace_anew(name)
        traced = self.tracer.trace(args, kwargs)
        key = traced.closed.jaxpr
        found = self.prepared.get(key)
        if found is None:
            found = self._plan(traced, args, kwargs)
            self._look_again()
            for line in self.varying.add(numbers(args, kwargs, self._names)):
                warn(line)
            if traced.reusable:
                self._keep(key, found)
        if traced.reusable:
            self.used[key] = next(self.calls)
        return found, traced.result, traced.arrays

    def _keep(self, key: Any, prepared: Prepared) -> None:
        """Store a program for later calls, and drop the least recently used one."""
        self.prepared[key] = prepared
        if self.shared.given is not None:  # a plan of the user is applied once
            self.shared.given, self.pinned = None, key
        if len(self.prepared) > KEPT:
            others = (k for k in self.prepared if k is not key and k is not self.pinned)
            oldest = min(others, key=self.used.__getitem__)
            del self.prepared[oldest], self.used[oldest]

    def _forget(self) -> None:
        self.tracer = Tracer(self.function, self.request.processor)
        self.prepared: dict[Any, Prepared] = {}
        self.used: dict[Any, int] = {}  # at which call a program was used last
        self.calls, self.pinned = itertools.count(), None

    def _trace_anew(self, name: str) -> None:
        """Drop all programs, which hold old closed-over values as constants."""
        self._forget()
        self.shared.given = self.request.plan
        line = (
            f"the function closes over {name}, which has changed since it was traced: "
            f"it is traced and planned anew; pass {name} as an argument to have one "
            f"program for all its values"
        )
        if line not in self.shared.announced:
            self.shared.announced.add(line)
            warn(line)

    def _look_again(self) -> None:
        """Accept changes made by the trace itself, such as that of a counter.

        Raises:
            CaptureError: It left a tracer there.
        """
        if self.closed is None:
            return
        if (name := self.closed.leaked()) is not None:
            msg = (
                f"the function changes {name}, which it closes over, while it is "
                f"traced; want a function that takes its state and gives it back (of a "
                f"model of flax.nnx or Equinox convert the model itself, of a model of "
                f"Keras its stateless_call). {name} holds a tracer now: set it again"
            )
            raise CaptureError(msg)

    def _plan(
        self, traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Prepared:
        known = self.describe(args, kwargs)
        if low := self.request.low:
            again = partial(self.tracer.trace_low, args, kwargs, low)
            casts = partial(self.tracer.casts, args, kwargs)
            known = replace(known, second=Second(again, casts, low))
        if self.request.processor is not None:
            states = tuple(self._states(traced))
            known = replace(known, states=states, processor=self.request.processor)
        if self.tolerant is not None:
            known = replace(known, search=self._search(traced, known))
        made = prepare(
            traced.closed,
            self.request.planner,
            known,
            self.shared.given,
            training=self.request.training is not False,
            captured=CAPTURED,
        )
        plan = self.request.with_regions(made.graph, made.plan)
        made = replace(made, plan=plan)
        if self.announces and self.tolerant is None:
            notes = run_check(made, traced.closed, traced.arrays)
            made = replace(made, plan=made.plan.with_warnings(*notes))
        if self.announces and (alters(made.plan) or not self.is_quiet):
            announce(made.plan, self.shared.announced)
        return made

    def _search(self, traced: Traced, inputs: Inputs) -> Search:
        arrays, result = traced.arrays, Result(traced.result, self.result_of)
        tolerant: Any = self.tolerant
        places = trained_positions(arrays, inputs.kinds)
        trained = {place: inputs.names[place] for place in places}

        def search(program: Program, graph: ProgramGraph, build: Any) -> Plan:
            sample = sample_of(program, graph, arrays, result)
            return tolerant.plan(sample, build, trained)

        return search

    def _states(self, traced: Traced) -> Iterator[Pair]:
        arrays = list(map(as_array, traced.arrays))
        taken, named = positions(traced.call, arrays)
        return self.states(taken, named, positions(traced.result))

    def _as_named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        return Inputs(input_names((tuple(args), dict(kwargs)), self._names))

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return parameter_names(self.function)

    @property
    def plans(self) -> list[Plan]:
        """The plans of all signatures, the first one first."""
        return [prepared.plan for prepared in self.prepared.values()]

    @property
    def plan(self) -> Plan:
        """The plan; those of several signatures as one.

        Raises:
            NotCapturedError: The function was not called yet.
        """
        plans = self.plans
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


def is_at(module: str, name: str, held: object) -> bool:
    """Return whether ``name`` in a loaded module refers to ``held``."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is held


def alters(plan: Plan) -> bool:
    """Return whether a plan changes any computation of its program."""
    if plan.lowered or plan.casts or plan.quantised:
        return True
    return plan.changes and not plan.low


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the positional parameters of ``function``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)
