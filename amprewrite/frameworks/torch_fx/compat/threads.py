"""Changes of torch during a capture that only the capturing thread sees.

A capture replaces functions of torch and sets flags of the process. Here each
replacement checks the thread: other threads get the old behaviour. One thread captures
at a time, so that changes are undone in reverse order.
"""
# pyright: reportPrivateUsage=false

import builtins
import logging
import re
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import wraps
from importlib import import_module
from threading import get_ident
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import torch

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat.operators import Transparent, dispatch_modes
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of

P = ParamSpec("P")
T = TypeVar("T")

TESTED = "torch 2.11 to 2.15"
"""Releases that the tests run with; see docs/versions.md."""

_BESIDE = set[int]()
"""Threads that capture while the thread that started them waits."""


def capturing() -> AbstractContextManager[Any]:
    """Hold torch's compile lock: one thread captures or compiles at a time (reentrant).

    It is the lock that torch.compile holds while it compiles. With a lock of our own, a
    thread that captures by dynamo and one in which dynamo calls our backend would
    deadlock.
    """
    if _is_beside():  # the thread that waits for this one holds it
        return nullcontext()
    frames: Any = import_module("torch._dynamo.convert_frame")
    return frames.compile_lock


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function``, which captures models, limited to one thread at a time."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with capturing():
            return function(*args, **kwargs)

    return alone


def is_here(thread: int) -> bool:
    """Return whether this is ``thread``."""
    return get_ident() == thread


# Marked constant: dynamo cannot trace get_ident, and the answer of the compiling thread
# is right. torch.compiler.assume_constant_result would load all of dynamo.
is_here.__dict__["_dynamo_marked_constant"] = True


def _is_beside() -> bool:
    return get_ident() in _BESIDE


_is_beside.__dict__["_dynamo_marked_constant"] = True


class _Here:
    """Flag that is true in the thread that made it, and unchanged in others."""

    def __init__(self, *, before: object) -> None:
        self._thread, self._before = get_ident(), before

    def __bool__(self) -> bool:
        return is_here(self._thread) or bool(self._before)

    def __or__(self, other: object) -> bool:
        """Return the logical or: models combine the flag with other conditions."""
        return bool(self) or bool(other)

    def __and__(self, other: object) -> bool:
        """Return the logical and."""
        return bool(self) and bool(other)

    __ror__, __rand__ = __or__, __and__


@contextmanager
def replaced(owner: object, name: str, function: Any) -> Generator[None]:
    """Replace ``owner.name`` by ``function`` in this thread alone.

    Args:
        owner: A class, a module or an object.
        name: Name of one of its functions, or of a builtin that a module calls.
        function: The replacement.

    Raises:
        UnsupportedError: This release of torch has no such function.
    """
    thread = get_ident()
    before = getattr(owner, name, None) or getattr(builtins, name, None)
    if before is None:
        place = getattr(owner, "__name__", type(owner).__name__)
        msg = (
            f"torch {torch.__version__} has no {place}.{name}, which a capture "
            f"replaces; amprewrite is tested with {TESTED}: install one of these"
        )
        raise UnsupportedError(msg)

    @wraps(before)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if is_here(thread):
            return function(*args, **kwargs)
        return before(*args, **kwargs)

    with mock.patch.object(owner, name, chosen, create=True):
        yield


@contextmanager
def flagged(owner: object, *names: str) -> Generator[None]:
    """Set flags of ``owner`` to true in this thread alone."""
    before = {name: getattr(owner, name) for name in names}
    try:
        for name, value in before.items():
            setattr(owner, name, _Here(before=value))
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class _Passing(Transparent):
    """Mode that runs each op as it is."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``."""
        del types
        return func(*args, **(kwargs or {}))


@contextmanager
def data_traced() -> Generator[None]:
    """Trace what a forward reads and writes by ``tensor.data`` in this thread.

    torch makes the alias of a tensor without values by an op only where a mode of
    Python is active (``VariableHooks::variable_data``, torch 2.11 to 2.15). Otherwise
    torch.export refuses it as a constant without values.
    """
    data: Any = torch._C.TensorBase.data
    thread = get_ident()

    def mode() -> AbstractContextManager[object]:
        return _Passing() if is_here(thread) else nullcontext()

    def get(tensor: torch.Tensor) -> Any:
        with mode():
            return data.__get__(tensor)

    def put(tensor: torch.Tensor, value: Any) -> None:
        with mode():
            data.__set__(tensor, value)

    with mock.patch.object(torch.Tensor, "data", property(get, put), create=True):
        yield


class _FromHere:
    """Pattern of a warnings filter that matches the warnings of one thread."""

    def __init__(self, message: str) -> None:
        self._thread, self._message = get_ident(), re.compile(message)

    def match(self, text: str) -> bool:
        return is_here(self._thread) and self._message.match(text) is not None


@contextmanager
def silent(category: type[Warning] = Warning, message: str = "") -> Generator[None]:
    """Ignore the warnings of this thread.

    ``warnings.catch_warnings`` replaces the filters of the whole process, and two
    threads that use it at once leave them replaced.

    Args:
        category: Class of the warnings.
        message: Pattern of the beginning of their text.
    """
    entry: Any = ("ignore", _FromHere(message), category, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, entry)
    try:
        yield
    finally:
        for held in (filters, warnings.filters):  # another list, within catch_warnings
            found: Any = held
            if entry in found:
                found.remove(entry)


@contextmanager
def silenced(name: str) -> Generator[None]:
    """Drop the log records of this thread to the logger ``name``."""
    thread, logger = get_ident(), logging.getLogger(name)

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


def as_if_exported() -> AbstractContextManager[None]:
    """Make torch's "is exporting" flags true for model code in this thread.

    transformers builds its masks differently then.
    """
    compiler = import_module("torch.compiler")
    return flagged(compiler, *_TRACING)


@contextmanager
def export_apart() -> Generator[None]:
    """Stop torch.export from changing state that other threads see.

    It marks the process as compiling, and disables oneDNN, so that no kernels of that
    library appear in a decomposed program. Ours are not decomposed; but the choice of a
    kernel for a convolution, by which it finds the layout of the result, would then be
    a condition on the batch (below 16, or not). Nor does it write of a failure, which
    is raised: the graph until then to stderr, the error of a kernel or an extent of 0
    or 1 to its logs.
    """
    trace = import_module("torch.export._trace")
    native: Any = import_module("torch._C")
    select = native._select_conv_backend

    def unconditional(*args: Any, **kwargs: Any) -> Any:
        mode: Any = fake_mode_of([*args, *kwargs.values()])
        if mode is None or mode.shape_env is None:
            return select(*args, **kwargs)
        with mode.shape_env.suppress_guards():
            return select(*args, **kwargs)

    with (
        silenced("torch._export.non_strict_utils"),
        silenced("torch._subclasses.fake_tensor"),
        silenced("torch.fx.experimental.symbolic_shapes"),
        replaced(trace, "print", _unheard),
        replaced(trace, "_compiling_state_context", as_if_exported),
        replaced(trace, "_ignore_backend_decomps", nullcontext),
        replaced(native, "_select_conv_backend", unconditional),
    ):
        yield


def _unheard(*_: object, **__: object) -> None:
    """Print nothing."""


def compile_apart() -> AbstractContextManager[None]:
    """Stop dynamo, while it captures, from marking other threads as compiling.

    Releases before torch 2.13 do not set that flag.
    """
    compiler = import_module("torch.compiler")
    name = "_compile_session_context"
    if not hasattr(compiler, name):
        return nullcontext()
    return replaced(compiler, name, lambda: flagged(compiler, "_is_compiling_flag"))


_EXPORT_STATE = ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY")
"""Variables of torch/export/_trace.py about the export that runs (2.9 to 2.13)."""

_TRACING = ("_is_compiling_flag", "_is_exporting_flag")
"""Flags of torch/compiler/__init__.py that are set while torch.export traces."""


def beside_export(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which captures while torch.export traces.

    It runs in a thread of its own, since most modes of a tracer belong to its thread.
    State of the process (flags, and the modes before dispatch) is as outside of an
    export meanwhile.

    Args:
        function: The function to run.
    """
    trace, compiler = map(import_module, ("torch.export._trace", "torch.compiler"))
    state = [(trace, name, getattr(trace, name, None)) for name in _EXPORT_STATE]
    state += [(compiler, name, getattr(compiler, name)) for name in _TRACING]

    def run() -> T:
        _BESIDE.add(get_ident())
        try:
            return function()
        finally:
            _BESIDE.remove(get_ident())

    with capturing(), without_modes(), ThreadPoolExecutor(1) as pool:
        try:
            for owner, name, _ in state[-len(_TRACING) :]:
                setattr(owner, name, False)
            return pool.submit(copy_context().run, run).result()
        finally:
            for owner, name, before in state:
                setattr(owner, name, before)


def is_capturing() -> bool:
    """Return whether this thread captures or compiles, and so holds the lock."""
    frames: Any = import_module("torch._dynamo.convert_frame")
    return _is_beside() or frames.compile_lock._is_owned()


def apart(function: Callable[[], T]) -> T:
    """Return the result of ``function``, run in a thread of its own.

    Modes of this thread (autocast, inference, no gradients) do not reach it. It may
    capture, so this thread must not: see :func:`is_capturing`.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def outside_modes(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which no mode and no transform around sees."""
    with without_modes():
        return apart(function)


def without_modes() -> AbstractContextManager[Any]:
    """Disable the modes around a call that see or replace ops."""
    modes: Any = import_module("torch.utils._python_dispatch")
    return modes._disable_current_modes()


def without_users_modes() -> AbstractContextManager[Any]:
    """Disable the modes around a call if one is the user's, a counter or a logger.

    A capture in the context is none of the model's own ops, and dynamo leaves a frame
    out for good if it first runs below a mode (``ConvertFrame``, torch 2.11 to 2.15).
    """
    modes: Any = dispatch_modes()
    own = [m for m in modes if not (m.is_infra_mode() or m.ignore_compile_internals())]
    return without_modes() if own else nullcontext()
