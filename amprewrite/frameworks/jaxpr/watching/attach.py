"""Calls of a JAX function, seen by a wrapper before each."""

from threading import local
from typing import Any

from amprewrite.frameworks.base import Attached, Watcher
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of


def attach(model: Any, watcher: Watcher) -> Attached:
    """Return a function that shows its calls to a watcher, each before it runs.

    Calls that are traced, as a part of a function under ``jit`` or ``grad``, are not
    shown, nor are those within a comparison.

    Args:
        model: A function, or a module of Equinox or Flax; one of linen is called by
            ``apply``.
        watcher: Consumer of the calls.
    """
    run: Any = model
    if adapter_of(model) is not None and hasattr(model, "apply"):
        run = model.apply
    comparing = local()

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = tree_util.tree_leaves((args, kwargs))
        if not getattr(comparing, "now", False) and not any(map(is_tracer, leaves)):
            number = watcher.due()
            if number:
                comparing.now = True
                try:
                    then = watcher.compare(number, args, kwargs)
                finally:
                    comparing.now = False
                then()
        return run(*args, **kwargs)

    def detach() -> None:
        """Do nothing: the watcher is not due any more."""

    return Attached(call, detach)
