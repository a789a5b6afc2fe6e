"""Functions that call modules, among their arguments or closed over."""

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import Pair, held_by
from amprewrite.frameworks.jaxpr.function.adapters import (
    children,
    modules_in,
    state_kinds,
    wrappers,
)
from amprewrite.frameworks.jaxpr.function.converted_function import parameter_names
from amprewrite.frameworks.jaxpr.program.scopes import named


def naming(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with name scopes for the modules that it calls."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with calling(function, args, kwargs):
            return function(*args, **kwargs)

    return run


@contextmanager
def calling(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None]:
    """Enter name scopes for the modules called by ``function``, in the context.

    Their paths begin with the parameter or variable that holds the module; if that
    module is itself called, as in ``jax.vmap(model)``, the paths inside it have no
    prefix.
    """
    names = parameter_names(function)
    found = [*_closed_over(function), *_given(names, args, kwargs)]
    if not found:
        yield
        return
    with named(found, children, wrappers()):
        yield


def states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
) -> Iterator[Pair]:
    """Yield the outputs that are states: those in a library's state containers.

    Other states of a function are unknown; linen's are plain dicts.
    """
    for kind in state_kinds():
        yield from held_by(kind, (args, dict(kwargs)), made)


def _given(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    many = [f"args.{i}" for i in range(len(names), len(args))]
    positional = zip([*names, *many], args, strict=False)
    yield from modules_in({**dict(positional), **kwargs})


def _closed_over(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    inner = inspect.unwrap(function)
    yield from modules_in(inner)
    with suppress(TypeError, ValueError):  # no function, or a name not assigned yet
        held = inspect.getclosurevars(inner)
        yield from modules_in({**held.globals, **held.nonlocals})
