"""Compile models by dynamo and inductor, and look at what dynamo captures."""
# pyright: reportPrivateUsage=false

import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._guards import CompileContext
from torch.fx import Graph, GraphModule

from amprewrite.frameworks.torch_fx.compat import threads
from amprewrite.user_code import is_users

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
    context = _dynamo().optimize(backend=backend, guard_filter_fn=_lasting)
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
        with alone, apart, threads.without_users_modes(), self._settings():
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


def _hooked(model: Any) -> bool:
    """Return whether a call of ``model`` runs hooks beside its ``forward``."""
    forwards = (model._forward_hooks, model._forward_pre_hooks)
    return any((*forwards, model._backward_hooks, model._backward_pre_hooks))


def compile_with_inductor(
    graph: GraphModule, example: Sequence[Any]
) -> Callable[..., Any]:
    """Return ``graph`` compiled by torch's default compiler."""
    inductor: Any = import_module("torch._inductor.compile_fx")  # slow
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
    guards = _on_arguments if fixed else None
    context = _dynamo().optimize(backend="inductor", guard_filter_fn=guards)

    @contextmanager
    def settings() -> Generator[None]:
        with freezing() if frozen else nullcontext(), _with_pass(graph_pass):
            yield

    context.callback = _Settled(context.callback, settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return context(_copied(call))


def called(model: Any) -> Callable[..., Any]:
    """Return the function that calls of ``model`` run: its hooks and its forward."""
    return model._call_impl


def set_called(model: nn.Module, function: Callable[..., Any]) -> None:
    """Make calls of ``model`` run ``function``, as those of a compiled module."""
    model.__dict__["_compiled_call_impl"] = function


def _with_pass(
    graph_pass: Callable[[Graph], None] | None,
) -> AbstractContextManager[Any]:
    """Run a pass on the graphs that inductor lowers, after those of the user."""
    if graph_pass is None:
        return nullcontext()
    inductor: Any = import_module("torch._inductor.config")  # slow
    users = inductor.post_grad_custom_pre_pass
    passes: Any = graph_pass  # releases before torch 2.13 take one alone
    if users is not None:
        passes = [*(users if isinstance(users, Sequence) else [users]), graph_pass]
    return inductor.patch(post_grad_custom_pre_pass=passes)


def freezing() -> AbstractContextManager[Any]:
    """Compile with weights as constants, which inductor folds and packs.

    Dynamo asks for the setting too, which an option of one backend does not change.
    """
    inductor: Any = import_module("torch._inductor.config")  # slow
    return inductor.patch(freezing=True)


MOST_CAPTURES = 256
"""Captures of a function that are made; dynamo itself stops after eight.

Beyond its limit it runs the function as it is, in full precision. 256 is its own limit
of captures over all models of a class.
"""


def _dynamo() -> Any:
    """Return torch's dynamo, which is imported at its first use."""
    untyped: Any = torch
    return untyped._dynamo


def inside_transform() -> bool:
    """Return whether a function transform runs (grad, vmap): dynamo captures nothing.

    It would capture the transform with the function, if it were called around it.
    """
    untyped: Any = torch
    return untyped._C._functorch.maybe_current_level() is not None


def is_of_dynamo(error: BaseException) -> bool:
    """Return whether an error is dynamo's own, and not of the code that it runs."""
    return isinstance(error, _dynamo().exc.TorchDynamoException)


@contextmanager
def around_captures(
    before: Callable[[], None], after: Callable[[], None]
) -> Generator[None]:
    """Call functions before and after each capture that dynamo makes meanwhile.

    Args:
        before: Function to call before.
        after: Function to call after.
    """
    handler: Any = import_module("torch._dynamo.callback").callback_handler

    def start(_: object) -> None:
        before()

    def end(_: object) -> None:
        after()

    handler.register_start_callback(start)
    handler.register_end_callback(end)
    try:
        yield
    finally:
        handler.remove_start_callback(start)
        handler.remove_end_callback(end)


def failing_line(error: BaseException) -> str:
    """Return the line of the code that dynamo was tracing, as ``file:line``, or empty.

    It is in a record of the error, or in a text that ends its message.
    """
    found = re.findall(r'File "(.+)", line (\d+), in ', str(error))
    for frame in getattr(error, "real_stack", None) or ():
        found.append((frame.filename, str(frame.lineno)))
    lines = [line for line in found if is_users(line[0])]
    return ":".join(lines[-1]) if lines else ""


def _conversion() -> FrameType | None:
    """Return the frame of dynamo's converter, if a capture is in progress."""
    wanted: CodeType = _dynamo().convert_frame.ConvertFrameAssert.__call__.__code__
    frames = _outwards(sys._getframe(1))
    return next((frame for frame in frames if frame.f_code is wanted), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def current_converter() -> Any:
    """Return dynamo's converter of the frame that is captured now; None outside.

    There is one for each call of ``torch.compile``.
    """
    found = _conversion()
    return None if found is None else found.f_locals["self"]


def current_code() -> CodeType | None:
    """Return the code of the frame that is captured now; None outside."""
    found = _conversion()
    return None if found is None else found.f_locals["frame"].f_code


def current_self() -> Any:
    """Return the first argument of the frame that is captured now, as of a method.

    None if there is none, and outside of a capture.
    """
    found = _conversion()
    return None if found is None else _first_argument(found.f_locals["frame"])


def _first_argument(frame: Any) -> Any:
    """Return the first argument of a frame; of a closure, its ``self``."""
    code: CodeType = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else "self"
    return frame.f_locals.get(first)


def outermost_module() -> nn.Module | None:
    """Return the outermost module that is running, up to the compiled callable.

    None if that is a function and no module of it is running.
    """
    context: Any = _dynamo().eval_frame.OptimizeContext
    captured = current_self()
    found = captured if isinstance(captured, nn.Module) else None
    for frame in _outwards(_conversion() or sys._getframe(1)):
        held = _first_argument(frame)
        if isinstance(held, context):
            return found
        if isinstance(held, nn.Module):
            found = held
    return found


def skipped_methods() -> list[CodeType]:
    """Return the methods around the current capture that dynamo gave up.

    They are methods of modules, the innermost first, and run as they are: dynamo gives
    up a function with a graph break inside of a loop, a ``with`` or a ``try``.
    """
    ours: Any = _dynamo().convert_frame.output_codes
    found: dict[CodeType, None] = {}
    conversion = _conversion()
    for frame in _outwards(conversion and conversion.f_back):
        held, code = _first_argument(frame), frame.f_code
        if isinstance(held, _dynamo().eval_frame.OptimizeContext):
            break
        if (
            isinstance(held, nn.Module)
            and code not in ours
            and code.co_filename != nn.Module.__call__.__code__.co_filename
        ):
            found[code] = None
    return list(found)


def parameter_sources(module: GraphModule) -> dict[str, str]:
    """Return the source of each placeholder of a dynamo graph, as dynamo spells it."""
    nodes: list[Any] = module.graph.find_nodes(op="placeholder")
    sources = {node.name: getattr(node, "_dynamo_source", None) for node in nodes}
    return {name: source.name for name, source in sources.items() if source is not None}


def capture_on(converter: Any) -> None:
    """Raise the number of captures of a compiled function to :data:`MOST_CAPTURES`.

    A limit that the user gave to ``torch.compile`` stays. Releases before torch 2.12
    know one limit alone, of the process: it is raised while the function is captured.
    """
    if not hasattr(converter, _LIMIT):
        converter.__class__ = _raised(converter.__class__)
    elif converter._recompile_limit is None:
        converter._recompile_limit = _most_captures()


_LIMIT = "_recompile_limit"
"""Attribute of a converter: the limit of one ``torch.compile`` (since torch 2.12)."""


def _most_captures() -> int:
    return max(_dynamo().config.recompile_limit, MOST_CAPTURES)


@cache
def _raised(kind: type[Any]) -> type[Any]:
    """Return the class of a converter, with a limit of its own."""
    if hasattr(kind, "amprewrite_raised"):
        return kind

    def capture(self: Any, *frame: Any, **state: Any) -> Any:
        with _dynamo().config.patch(recompile_limit=_most_captures()):
            return kind.__call__(self, *frame, **state)

    return type(kind.__name__, (kind,), {"__call__": capture, "amprewrite_raised": 1})


def is_last_capture(converter: Any) -> bool:
    """Return whether dynamo will not capture the current frame again."""
    current = CompileContext.current_compile_id()
    made = None if current is None else current.frame_compile_id
    most: int = _dynamo().config.accumulated_recompile_limit
    own: int | None = getattr(converter, _LIMIT, None)
    return made is not None and made + 1 >= min(most, most if own is None else own)


def converters(compiled: Any) -> list[Any]:
    """Return dynamo's converters of a result of ``torch.compile``; none of others.

    Args:
        compiled: A module or function, or a module compiled by ``module.compile()``.
    """
    if "torch._dynamo" not in sys.modules:
        return []
    kind: Any = _dynamo().eval_frame._TorchDynamoContext
    held = [getattr(compiled, "dynamo_ctx", None)]
    run = getattr(compiled, "_compiled_call_impl", None) or compiled
    held += [cell.cell_contents for cell in getattr(run, "__closure__", None) or ()]
    context = next((one for one in held if isinstance(one, kind)), None)
    found: list[Any] = []
    part = getattr(context, "callback", None)
    while part is not None:
        found.append(part)
        inner = getattr(part, "_inner_convert", None)
        part = inner or getattr(part, "_torchdynamo_orig_backend", None)
    return found


def set_apart(converter: Any) -> None:
    """Make dynamo capture for one compiled callable alone.

    It runs the captures of another one where the backend and its options are equal: by
    the plans of another model, which its ``plans`` and ``plan_of`` would not have.
    """
    innermost: Any = _dynamo().eval_frame.innermost_backend(converter)
    compiler = getattr(innermost, "compiler_fn", None)
    if compiler is not None and not isinstance(compiler, partial):
        innermost.compiler_fn = partial(compiler)  # a partial equals itself alone
