"""Compile models and graphs by dynamo and inductor, and functions by neither."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.frameworks.torch_fx.compat import threads

REPLACED = ("get_fastpath_enabled", "_detect_is_causal_mask")
"""Functions of torch that are replaced while a frame is captured."""


def compiled(
    model: nn.Module,
    backend: Callable[..., Any],
    settings: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[..., Any]:
    """Return ``model`` captured by dynamo and compiled by ``backend``.

    ``settings`` are active while dynamo captures, not while the result runs.

    Dynamo stores captures with the code of the outermost function, and gives up on that
    code after eight. A module of torch itself is compiled through a function that all
    modules share, those of the user included, and all models of a class share their
    ``forward``: so it is copied here. For a copy dynamo knows the globals; those of an
    inner function it imports by the module name of its file, which a script that was
    run by its path does not have.
    """
    bound: Any = model.forward  # it may have been replaced by any callable
    forward = getattr(bound, "__func__", None)
    own = isinstance(forward, FunctionType) and bound.__self__ is model
    where: str | None = forward.__module__ if own else None
    if own and not (where or "").startswith("torch.") and not _hooked(model):
        run: Callable[..., Any] = MethodType(_copied(forward), model)
    else:
        run = _copied(_calling(model))
    untyped: Any = torch
    context = untyped._dynamo.optimize(backend=backend, guard_filter_fn=_lasting)
    context.callback = _Settled(context.callback, settings)
    return context(run)


def _lasting(guards: Sequence[Any]) -> list[bool]:
    """Return which guards to keep: all but those on replaced functions.

    Dynamo then makes those anew, and checks that each is on the same object: a tensor
    that it makes of an array of NumPy is another one each time, so the first is
    forgotten.
    """
    for guard in guards:
        guard.orig_guard.obj_weakref = None
    return [not any(name in g.name for name in REPLACED) for g in guards]


def _on_arguments(guards: Sequence[Any]) -> list[bool]:
    """Return which guards to keep: all but those on global variables and on modules.

    Tensors of modules that are inputs of the code are compared. Of frozen code they are
    none: whoever calls it compares them.
    """
    return [
        guard.guard_type == "TENSOR_MATCH"
        or not (guard.is_global or ".__self__" in guard.name)
        for guard in guards
    ]


class _Settled:
    """Wrapper of dynamo's frame converter that applies the settings.

    It has the other attributes of the wrapped converter: dynamo looks up the backend
        there.
    """

    def __init__(
        self, capture: Any, settings: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.__dict__.update(capture.__dict__)
        self._capture, self._settings = capture, settings

    def __call__(self, *frame: Any, **state: Any) -> Any:
        alone, apart = threads.capturing(), threads.compile_apart()
        with alone, apart, self._settings():
            return self._capture(*frame, **state)


def _calling(model: nn.Module) -> Callable[..., Any]:
    self = model  # by which name paths in the captured graph begin

    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    return call


def _copied(function: Any) -> Any:
    """Return a copy of a function with a code object of its own."""
    made = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _hooked(model: nn.Module) -> bool:
    """Return whether a call of ``model`` runs hooks beside its ``forward``."""
    untyped: Any = model
    forwards = (untyped._forward_hooks, untyped._forward_pre_hooks)
    return any((*forwards, untyped._backward_hooks, untyped._backward_pre_hooks))


def compile_with_inductor(
    graph: GraphModule, example: Sequence[Any]
) -> Callable[..., Any]:
    """Return ``graph`` compiled by torch's default compiler."""
    from torch._inductor import compile_fx  # noqa: PLC0415  # slow import

    inductor: Any = compile_fx
    return inductor.compile_fx(graph, example)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, excluded from compilations around its calls."""
    untyped: Any = torch.compiler
    return untyped.disable(function)


def compiled_function(
    function: Callable[..., Any],
    *,
    frozen: bool = False,
    fixed: bool = False,
    graph_pass: Callable[[Graph], None] | None = None,
) -> Callable[..., Any]:
    """Return a function compiled by torch's default compiler, in a cache of its own.

    Args:
        function: The function, or a bound method.
        frozen: Whether tensors that it reads from modules become constants of the
            compiled code, where gradients are off: whoever calls it sees to it that
            nobody writes to them.
        fixed: Whether the modules and global variables that it reads stay as they are:
            then only its arguments and the state of torch are compared at each call.
            A Llama of 4 layers has 523 guards, which take 0.2 ms, and 27 without those
            on modules and global variables (measured).
        graph_pass: Changes each graph in place before inductor lowers it.
    """
    untyped: Any = torch
    guards = _on_arguments if fixed else None
    context = untyped._dynamo.optimize(backend="inductor", guard_filter_fn=guards)

    @contextmanager
    def settings() -> Generator[None]:
        with freezing() if frozen else nullcontext(), _with_pass(graph_pass):
            yield

    context.callback = _Settled(context.callback, settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return context(_copied(call))


def called(model: nn.Module) -> Callable[..., Any]:
    """Return the function that calls of ``model`` run: its hooks and its forward."""
    untyped: Any = model
    return untyped._call_impl


def set_called(model: nn.Module, function: Callable[..., Any]) -> None:
    """Make calls of ``model`` run ``function``, as those of a compiled module."""
    model.__dict__["_compiled_call_impl"] = function


@contextmanager
def _with_pass(graph_pass: Callable[[Graph], None] | None) -> Generator[None]:
    """Run a pass on the graphs that inductor lowers, after those of the user."""
    from torch._inductor import config  # noqa: PLC0415  # slow import

    inductor: Any = config
    given = inductor.post_grad_custom_pre_pass
    if graph_pass is None:
        yield
        return
    passes: Any = graph_pass  # releases before torch 2.13 take one alone
    if given is not None:
        passes = [*(given if isinstance(given, Sequence) else [given]), graph_pass]
    with inductor.patch(post_grad_custom_pre_pass=passes):
        yield


@contextmanager
def freezing() -> Generator[None]:
    """Compile with weights as constants, which inductor folds and packs.

    Dynamo asks for the setting too, which an option of one backend does not change.
    """
    from torch._inductor import config  # noqa: PLC0415  # slow import

    inductor: Any = config
    with inductor.patch(freezing=True):
        yield
