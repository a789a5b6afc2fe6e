"""Name stacks of equations: scopes and transformations, and how to bind inside."""

from contextlib import AbstractContextManager
from typing import Any

from jax.extend import source_info_util

from amprewrite.frameworks.jaxpr.compat.equations import Eqn


def place_of(eqn: Eqn, name_stack: Any) -> AbstractContextManager[Any]:
    """Give equations bound inside the traceback of ``eqn`` and the given scopes."""
    stack = source_info_util.current_name_stack() + name_stack
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)


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
