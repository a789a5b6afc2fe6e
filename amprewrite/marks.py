"""Markers in a model's source: a precision that overrides every policy."""

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")

FULL = "amprewrite:full_precision"
LOW = "amprewrite:low_precision"

MARKS: dict[str, Literal["full", "low"]] = {FULL: "full", LOW: "low"}
"""Precision that each marking scope asks for."""

NOTE = "amprewrite"
"""Key of the annotation that torch puts on the nodes of a marked region."""


@overload
def full_precision(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def full_precision(function: None = None) -> AbstractContextManager[None]: ...
def full_precision(
    function: Callable[P, R] | None = None,
) -> Callable[P, R] | AbstractContextManager[None]:
    """Keep the computation inside in full precision.

    Use it as a decorator, or without a function as a context manager. It marks the
    program while it is traced, so that the mark survives jit, scan and differentiation;
    without ``convert`` it does nothing. It overrides every rule of a policy. Data
    movement, and ops without a low precision, are not affected.
    """
    return _marked(FULL) if function is None else _decorated(FULL, function)


@overload
def low_precision(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def low_precision(function: None = None) -> AbstractContextManager[None]: ...
def low_precision(
    function: Callable[P, R] | None = None,
) -> Callable[P, R] | AbstractContextManager[None]:
    """Compute inside in low precision, even where the policy denies it.

    Use it as a decorator, or without a function as a context manager; see
    :func:`full_precision`.
    """
    return _marked(LOW) if function is None else _decorated(LOW, function)


def _decorated(mark: str, function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _marked(mark):
            return function(*args, **kwargs)

    return marked


def _marked(mark: str) -> AbstractContextManager[None]:
    """Enter the scope in the framework that is tracing; without one, do nothing."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return torch.fx.traceback.annotate({NOTE: MARKS[mark]})
    jax: Any = sys.modules.get("jax")
    return nullcontext() if jax is None else jax.named_scope(mark)
