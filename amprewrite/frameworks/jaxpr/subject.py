"""What is verified: a model as a pure function of arrays, and its program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amprewrite.dtypes import is_float
from amprewrite.frameworks.base import Call as Asked
from amprewrite.frameworks.jaxpr.inline import inline
from amprewrite.frameworks.jaxpr.ops import dtype_name
from amprewrite.frameworks.jaxpr.prepare import Prepared
from amprewrite.frameworks.jaxpr.program import Program
from amprewrite.frameworks.jaxpr.run import ConvertedFunction, parameter_names
from amprewrite.frameworks.jaxpr.trace import Call, Traced, Tracer, input_names, split


@dataclass(frozen=True)
class Pure:
    """A model as a pure function and the arguments to call it with.

    Attributes:
        function: The function.
        args: Positional arguments, the parameters of a module among them.
        kwargs: Keyword arguments.
        parameters: Picks the part of ``args`` that is trained; None for all floats.
        converted: The converted function inside; None for an original.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    parameters: Callable[[tuple[Any, ...]], Any] | None = None
    converted: ConvertedFunction | None = None


def pure(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pure:
    """Return ``model`` as a pure function: the place where kinds of modules hook in.

    An original and its converted form must give functions of the same arrays.
    """
    held = getattr(model, "__wrapped__", None)  # what jax.jit made of a converted one
    found = model if isinstance(model, ConvertedFunction) else held
    converted = found if isinstance(found, ConvertedFunction) else None
    return Pure(model, args, kwargs, converted=converted)


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
        """Return what the function gives on ``arrays``."""
        args, kwargs = self.call.arguments(arrays)
        return self.pure.function(*args, **kwargs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        tree = (self.pure.args, dict(self.pure.kwargs))
        return input_names(tree, parameter_names(self.pure.function))

    @cached_property
    def trained(self) -> tuple[int, ...]:
        """Positions of the arrays whose gradients are compared."""
        held = self.arrays
        if self.pure.parameters is not None:
            held = split(self.pure.parameters(self.pure.args))[1]
        wanted = {id(x) for x in held if is_float(dtype_name(x))}
        return tuple(i for i, x in enumerate(self.arrays) if id(x) in wanted)

    @cached_property
    def _traced(self) -> Traced:
        return Tracer(self.pure.function).trace(self.pure.args, self.pure.kwargs)

    @property
    def result(self) -> Call:
        """How the outputs are put together."""
        return self._traced.result

    @cached_property
    def program(self) -> Program:
        """The program."""
        return inline(self._traced.closed, self.names.__getitem__)


def subject_of(model: Any, asked: Asked) -> Subject:
    """Return ``model`` and the arguments that were given as a subject."""
    found = pure(model, asked.args, asked.kwargs)
    call, arrays = split((found.args, dict(found.kwargs)))
    return Subject(found, call, tuple(arrays))


def prepared_of(model: Any, asked: Asked) -> Prepared | None:
    """Return the program and the plan by which ``model`` runs; None without one."""
    found = pure(model, asked.args, asked.kwargs)
    if found.converted is None:
        return None
    return found.converted.prepare(found.args, found.kwargs)[0]
