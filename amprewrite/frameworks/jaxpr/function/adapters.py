"""Look up the adapter of a module's library, and the modules that a function calls.

They are among its arguments, or it closes over them. An adapter is loaded only for
models of its library, so that no library is required.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import Pair, held_by, part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.function.converted_function import parameter_names
from amprewrite.frameworks.jaxpr.program.scopes import named

MODULES = "amprewrite.frameworks.jaxpr.modules"
"""The package of the adapters."""

LIBRARIES = {
    "equinox": ("equinox", "Module"),
    "linen": ("flax.linen", "Module"),
    "nnx": ("flax.nnx", "Module"),
}
"""By adapter: the library, and the name of its class of modules."""


def _loaded() -> Iterator[tuple[str, type]]:
    """Yield the names of adapters of loaded libraries, with their module classes."""
    for name, (library, kind) in LIBRARIES.items():
        known = getattr(sys.modules.get(library), kind, None)  # None: not loaded
        if known is not None:
            yield name, known


def _adapter(name: str) -> Any:
    return import_module(f"{MODULES}.{name}")


def adapter_of(model: object) -> Any:
    """Return the adapter for ``model``; None if no library of modules has it."""
    names = (name for name, kind in _loaded() if isinstance(model, kind))
    return next(map(_adapter, names), None)


def children(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in ``module`` that are called, by path; itself first."""
    adapter = adapter_of(module)
    yield from adapter.children(module) if hasattr(adapter, "children") else ()


def wrappers() -> Iterator[type]:
    """Yield the loaded libraries' classes of callables that wrap a callable."""
    for name, _ in _loaded():
        yield from getattr(_adapter(name), "WRAPPERS", ())


def state_kinds() -> Iterator[type]:
    """Yield the classes of the loaded libraries that hold state."""
    for name, _ in _loaded():
        if hasattr(_adapter(name), "STATE"):
            yield _adapter(name).STATE


def modules_in(held: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in a tree, with the paths of all that they hold."""
    kinds = tuple(
        kind for name, kind in _loaded() if hasattr(_adapter(name), "children")
    )

    def is_module(leaf: object) -> bool:
        return isinstance(leaf, kinds)

    leaves = tree.tree_leaves(held, is_leaf=is_module) if kinds else ()
    if not any(map(is_module, leaves)):  # as in most trees, of which paths take longer
        return
    for path, leaf in tree.tree_flatten_with_path(held, is_leaf=is_module)[0]:
        if is_module(leaf):
            above = [part_name(key) for key in path]
            for below, child in children(leaf):
                yield ".".join([*above, below] if below else above), child


# Functions that call modules, among their arguments or closed over.


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
