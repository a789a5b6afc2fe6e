"""Name stacks of equations: scopes and transformations, and how to bind inside."""

from contextlib import AbstractContextManager
from typing import Any

from jax.extend import source_info_util

from amprewrite.frameworks.jaxpr.compat.equations import Eqn


def place_of(eqn: Eqn, name_stack: Any) -> AbstractContextManager[Any]:
    """Give equations bound inside the traceback of ``eqn``, and scopes to those here.

    Args:
        eqn: The equation.
        name_stack: The scopes, inside of those that are open.
    """
    return place_in(current(), eqn, name_stack)


def place_in(outer: Any, eqn: Eqn, name_stack: Any) -> AbstractContextManager[Any]:
    """Give equations bound inside the traceback of ``eqn``, and scopes in ``outer``."""
    stack = outer + name_stack if outer.stack else name_stack  # most have none around
    traceback = eqn.source_info.traceback
    return source_info_util.user_context(traceback, name_stack=stack)


def current() -> Any:
    """Return the name stack that is open here."""
    return source_info_util.current_name_stack()


def scopes(name_stack: Any) -> tuple[str, ...]:
    """Return the names in a name stack, outermost first, without transformations."""
    if not name_stack.stack:
        return ()
    kinds = (e for e in name_stack.stack if type(e).__name__ == "Scope")
    return tuple([element.name for element in kinds])


def transformations(name_stack: Any) -> frozenset[str]:
    """Return the transformations that made an equation, such as ``jvp``."""
    found = (e for e in name_stack.stack if type(e).__name__ == "Transform")
    return frozenset(element.name for element in found)
