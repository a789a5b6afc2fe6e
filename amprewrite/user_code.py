"""Lines of the user's code, separated from those of libraries by their directories.

A directory of the user may have the name of a library: a project in a folder ``torch``,
a clone of this package. So a file is compared with where the libraries were loaded
from, not with their names.
"""

import os
import sys
import sysconfig
from functools import cache
from types import FrameType
from typing import TypeAlias

Line: TypeAlias = tuple[str, int]
"""File and line number."""

LIBRARIES = (
    *("amprewrite", "click", "equinox", "flax", "haiku", "jax", "jaxlib", "jaxopt"),
    *("jaxtyping", "optax", "sympy", "torch", "typer"),
)
"""Packages between the user's code and this package; so is the standard library."""

_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
INSTALLED = tuple(name + os.sep for name in ("site-packages", "dist-packages"))
"""Directories of installed packages, which may lie inside the standard library's."""


@cache
def is_in(file: str, *packages: str) -> bool:
    """Return whether ``file`` is a part of one of ``packages``, as they are loaded."""
    loaded = (sys.modules.get(name) for name in packages)
    paths = (path for module in loaded for path in getattr(module, "__path__", ()))
    return any(file.startswith(path + os.sep) for path in paths)


@cache
def is_users(file: str) -> bool:
    """Return whether ``file`` is the user's: no library's of :data:`LIBRARIES`."""
    return not (
        file.startswith("<frozen") or _is_standard(file) or is_in(file, *LIBRARIES)
    )


def _is_standard(file: str) -> bool:
    """Return whether ``file`` is a part of the standard library."""
    inside = (root for root in _STANDARD if file.startswith(root + os.sep))
    return any(not file[len(root) + 1 :].startswith(INSTALLED) for root in inside)


def runs_users(frame: FrameType) -> bool:
    """Return whether a frame runs a line that the user wrote.

    Code without a file was typed into a shell, unless it was generated for a module
    that has one, such as the ``__init__`` of a dataclass.
    """
    file = frame.f_code.co_filename
    is_generated = file.startswith("<") and "__file__" in frame.f_globals
    return not is_generated and is_users(file)


def raised_at(error: BaseException) -> Line | None:
    """Return the innermost line of the user in an error's traceback; None without."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if runs_users(trace.tb_frame):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return found
