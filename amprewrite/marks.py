"""Markers in a model: precision that its author asks for, whatever the policy says."""

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

MARKS: dict[str, Literal["full", "low"]] = {
    "amprewrite:full_precision": "full",
    "amprewrite:low_precision": "low",
}
"""Scopes that mark, and what they ask for."""


def full_precision(function: Callable[..., Any] | None = None) -> Any:
    """Keep what is computed inside in full precision.

    A decorator, and without a function a context manager. It marks the program while
    it is traced, so that the mark survives jit, scan and differentiation; without
    ``convert`` it does nothing. It comes before every rule of a policy. Data movement
    and what has no low precision are not concerned.
    """
    return _marker("amprewrite:full_precision", function)


def low_precision(function: Callable[..., Any] | None = None) -> Any:
    """Compute what is inside in low precision, also what the policy denies.

    A decorator, and without a function a context manager; see :func:`full_precision`.
    """
    return _marker("amprewrite:low_precision", function)


def _marker(mark: str, function: Callable[..., Any] | None) -> Any:
    if function is None:
        return _marked(mark)

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with _marked(mark):
            return function(*args, **kwargs)

    return marked


@contextmanager
def _marked(mark: str) -> Generator[None]:
    """Enter ``mark`` in the frameworks that are loaded: others have nothing to mark."""
    with ExitStack() as stack:
        jax: Any = sys.modules.get("jax")
        if jax is not None:
            stack.enter_context(jax.named_scope(mark))
        yield
