"""Module paths in the program: a name scope for each module during tracing.

Linen names the scopes of its modules, Equinox only those of its own layers, and NNX
none. While a module is traced, ``__call__`` of the classes in it enters a scope with
the attribute path of the instance, ``/blocks.0.attn.query``, so that rules can name it.
The leading slash marks a complete path: modules may call each other in any order. Calls
outside such a trace, also in other threads, are not affected.
"""

import functools
import inspect
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

from amprewrite.frameworks.jaxpr.compat.binding import replaced
from amprewrite.frameworks.jaxpr.compat.untyped import jax, tree_util
from amprewrite.marks import MARKS

Modules = Iterable[tuple[str, Any]]
"""Pairs of a module path and the module."""

WRAPPED = re.compile(r"^(?:\w+\()*([^()]*)\)*$")
"""Pattern of a name wrapped by transformations: ``transpose(jvp(name))``."""

PROMOTED = "amprewrite:promoted"
"""Name scope of the casts inserted by promotion during a trace."""

_EINSUM = "->"
"""Mark of the scopes that ``jnp.einsum`` names by its subscripts."""

_OF_LIBRARIES = re.compile(r"eqx\.nn\.\w+")

_retraced: Any = jax.make_user_context("")
"""User context in JAX's trace keys: a jitted part is traced again for each module."""


@functools.lru_cache(maxsize=4096)
def module_path(scopes: tuple[str, ...]) -> str:
    """Return the module path in ``scopes``, without transformations.

    A scope with a leading slash is the whole path of a module; Equinox's names of
    layers are not part of it.
    """
    path: list[str] = []
    named = False
    for scope in scopes:
        if scope.startswith("/"):
            path, named = [scope[1:]], True
            continue
        matches = (WRAPPED.match(part) for part in scope.split("/"))
        plain = (match[1] for match in matches if match)
        path += [p for p in plain if not (named and _OF_LIBRARIES.fullmatch(p))]
    own = {*MARKS, PROMOTED}
    return ".".join(p for p in path if p and p not in own and _EINSUM not in p)


@contextmanager
def scope(path: str, *, holds_modules: bool = False) -> Generator[None]:
    """Trace the context's body as part of the module at ``path``.

    Args:
        path: The path.
        holds_modules: Whether other modules are called inside: then jitted parts are
            traced again, since their names are part of the trace.
    """
    with jax.named_scope(f"/{path}"), _retraced(f"/{path}" if holds_modules else ""):
        yield


@contextmanager
def named(
    modules: Modules,
    children: Callable[[Any], Modules],
    wrappers: Iterable[type] = (),
) -> Generator[None]:
    """Enter the scope of each module called inside the context.

    Args:
        modules: The known modules.
        children: Returns the modules in a module with their paths, and itself.
        wrappers: Classes of callables with ``__wrapped__``, which may be a module.
    """
    names = _Names(modules, children)
    kinds = {kind for _, m in names.known if (kind := _definer(m)) is not None}
    kinds.update(wrappers)
    token = _active.set(names)
    try:
        with replaced(*((kind, "__call__", _entering) for kind in kinds)):
            yield
    finally:
        _active.reset(token)


class _Names:
    """The paths of the modules of one trace, by identity."""

    def __init__(self, modules: Modules, children: Callable[[Any], Modules]) -> None:
        self.children = children
        self.known = [(path, module) for path, module in modules]
        self.paths = {id(module): path for path, module in reversed(self.known)}
        self.parents = {p.rpartition(".")[0] for p in self.paths.values()}
        self.rebuilt: list[Any] = []  # kept, so that no other gets their identity
        self.current = [""]

    @contextmanager
    def entered(self, module: Any) -> Generator[None]:
        inner = inspect.unwrap(module)
        path = self.paths.get(id(module), self.paths.get(id(inner)))
        if path is None:
            path = self._path_of_rebuilt(inner)
        if path is None or path == self.current[-1]:
            yield
            return
        self.current.append(path)
        try:
            with scope(path, holds_modules=path in self.parents):
                yield
        finally:
            self.current.pop()

    def _path_of_rebuilt(self, module: Any) -> str | None:
        """Return the path of a module that a transformation rebuilt.

        It is matched with the known modules inside the running one; if several match,
        the path is that of their parent with the name of the class.
        """
        here = self.current[-1]
        inside = [
            (path, known)
            for path, known in self.known
            if type(known) is type(module)
            and (path + ".").startswith(here and here + ".")
        ]
        if len(inside) > 1:
            structure = tree_util.tree_structure
            wanted = structure(module)
            inside = [(p, m) for p, m in inside if structure(m) == wanted]
        if len(inside) > 1:
            inside = [(p, m) for p, m in inside if _holds_the_same(m, module)] or inside
        if not inside:
            return None
        path = inside[0][0]
        if len(inside) > 1:
            path = _above([path for path, _ in inside], type(module).__name__)
        self.rebuilt.append(module)
        for below, child in self.children(module):
            joined = f"{path}.{below}" if path and below else path or below
            self.paths[id(child)] = joined
            self.rebuilt.append(child)
        return path


def _holds_the_same(module: Any, other: Any) -> bool:
    """Return whether two modules hold the same array objects: one is a copy."""
    ours, theirs = map(tree_util.tree_leaves, (module, other))
    return all(one is two for one, two in zip(ours, theirs, strict=True))


def _above(paths: list[str], name: str) -> str:
    columns = zip(*(path.split(".") for path in paths), strict=False)
    shared = takewhile(lambda column: len(set(column)) == 1, columns)
    return ".".join([*(column[0] for column in shared), name])


def _definer(module: Any) -> type | None:
    """Return the class that defines ``__call__`` for ``module``."""
    bases: tuple[type, ...] = type(module).__mro__
    return next((base for base in bases if "__call__" in vars(base)), None)


_active: ContextVar[_Names | None] = ContextVar("amprewrite_modules", default=None)


def _entering(original: Any) -> Callable[..., Any]:
    """Return ``original``, a ``__call__``, wrapped in the module's scope."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = original.__get__(self, type(self))  # a function, or a wrapper of one
        names = _active.get()
        if names is None:
            return run(*args, **kwargs)
        with names.entered(self):
            return run(*args, **kwargs)

    return functools.update_wrapper(call, original, updated=())
