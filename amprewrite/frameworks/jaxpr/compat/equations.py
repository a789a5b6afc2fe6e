"""Equations in every version of JAX: bodies, parameters, name stacks, tracebacks."""

import functools
import inspect
import os
from contextlib import AbstractContextManager
from typing import Any

from jax.extend import source_info_util
from jax.flatten_util import ravel_pytree

from amprewrite.frameworks.jaxpr.compat.untyped import jex
from amprewrite.ops.compounds import function_compound
from amprewrite.user_code import is_users, runs_users

# Literals, bodies and parameters of equations, in every version of JAX.

Eqn = Any
"""A ``jax.extend.core.JaxprEqn``; its attributes carry no types in JAX."""


def bind_params(eqn: Eqn) -> dict[str, Any]:
    """Return the parameters to bind the primitive of ``eqn`` again."""
    return dict(eqn.primitive.get_bind_params(eqn.params))


def file_of(eqn: Eqn) -> str:
    """Return the file of the function that a ``jit`` calls; empty if not known."""
    info = getattr(body_of(eqn).jaxpr, "debug_info", None)
    return getattr(info, "func_filename", None) or ""


def has_bodies(eqn: Eqn) -> bool:
    """Return whether ``eqn`` has a jaxpr among its parameters."""
    return next(iter(jex.jaxprs_in_params(eqn.params)), None) is not None


def body_of(eqn: Eqn) -> Any:
    """Return the only body of ``eqn``; its name differs between versions."""
    params = eqn.params
    return params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]


def scan_counts(eqn: Eqn) -> tuple[int, int]:
    """Return the numbers of constants and carries of a scan; slices follow."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()  # jax 0.11
    return len(consts), len(carries)


def is_plain_jit(eqn: Eqn) -> bool:
    """Return whether a ``jit`` only calls: it fixes no sharding and donates nothing."""
    params = eqn.params
    named = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    fixed = (part for key in named for part in params.get(key) or ())
    unfixed = all(part is None or _is_unspecified(part) for part in fixed)
    return unfixed and not any(params.get("donated_invars") or ())


def _is_unspecified(sharding: object) -> bool:
    return type(sharding).__name__ == "UnspecifiedValue"


def sharding_argument(sharding: object) -> Any:
    """Return a sharding for ``jax.jit``: None where it is not specified."""
    return None if _is_unspecified(sharding) else sharding


def manual_axes(eqn: Eqn) -> set[Any]:
    """Return the mesh axes that a ``shard_map`` makes manual."""
    named = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", ()))
    return set(named)


# Name stacks of equations: scopes and transformations, and how to bind inside.


def place_in(outer: Any, eqn: Eqn, name_stack: Any) -> AbstractContextManager[Any]:
    """Give equations bound inside the traceback of ``eqn``, and scopes in ``outer``.

    Args:
        outer: The scopes that are open, as :func:`current` returns them.
        eqn: The equation.
        name_stack: The scopes inside of those.
    """
    stack = outer + name_stack if outer.stack else name_stack  # most have none around
    traceback = eqn.source_info.traceback
    return source_info_util.user_context(traceback, name_stack=stack)


def current() -> Any:
    """Return the name stack that is open here."""
    return source_info_util.current_name_stack()


def scopes(name_stack: Any) -> tuple[str, ...]:
    """Return the names in a name stack, outermost first, without transformations."""
    return tuple(_names_in(name_stack, "Scope")) if name_stack.stack else ()


def transformations(name_stack: Any) -> frozenset[str]:
    """Return the transformations that made an equation, such as ``jvp``."""
    return frozenset(_names_in(name_stack, "Transform"))


def _names_in(name_stack: Any, kind: str) -> list[str]:
    return [e.name for e in name_stack.stack if type(e).__name__ == kind]


# Tracebacks of equations: lines of the user, and named functions around them.


def current_line() -> str:
    """Return ``file:line`` of the user's own code that is being traced."""
    frame = inspect.currentframe()
    while frame is not None:
        if runs_users(frame):
            file = frame.f_code.co_filename
            return f"{os.path.basename(file)}:{frame.f_lineno}"  # noqa: PTH119  # a frame holds a plain string
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def source_line(traceback: Any) -> str:
    """Return ``file:line`` of the innermost frame of the user's own code."""
    if traceback is None:
        return ""
    codes, places = traceback.raw_frames()  # frames with lines take twenty times longer
    for code, place in zip(codes, places, strict=True):
        if is_users(code.co_filename):
            line = traceback.code_addr2line(code, place)
            return f"{os.path.basename(code.co_filename)}:{line}"  # noqa: PTH119  # a frame holds a plain string
    return ""


Frames = tuple[tuple[str, int], ...]
"""File and line of frames, innermost first."""


@functools.lru_cache(maxsize=4096)
def named_frames(traceback: Any) -> tuple[tuple[str, Frames], ...]:
    """Return the frames of functions that are compounds, outermost first.

    Returns:
        The compound of each, see :mod:`amprewrite.ops.compounds`, and the frames that
        called it.
    """
    if traceback is None:
        return ()
    codes, places = traceback.raw_frames()
    found = [
        (compound, index)
        for index, code in enumerate(codes)
        if (compound := function_compound(code.co_qualname))
    ]
    if not found:
        return ()
    lines = [
        (code.co_filename, traceback.code_addr2line(code, place))
        for code, place in zip(codes, places, strict=True)
    ]
    return tuple((name, tuple(lines[i + 1 :])) for name, i in reversed(found))


def is_unravelled(traceback: Any) -> bool:
    """Return whether an equation splits an array that ``ravel_pytree`` joined."""
    file = inspect.getfile(ravel_pytree)
    return traceback is not None and any(
        code.co_filename == file for code in traceback.raw_frames()[0]
    )
