"""Look up the adapter of a module's library, and the modules in a tree.

An adapter is loaded only for models of its library, so that no library is required.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree

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
    """Return the adapter for ``model``; None if it is no module of a library."""
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
