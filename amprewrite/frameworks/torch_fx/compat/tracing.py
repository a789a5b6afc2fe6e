"""Trace functions to ATen-level graphs, with notes on their nodes."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.fx import GraphModule, Node, traceback
from torch.fx.experimental import proxy_tensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from amprewrite.frameworks.torch_fx.compat import (
    operators,
    settings,
    tensor_internals,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.operators import HigherOrderOperator
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree


def uses_transforms(module: GraphModule) -> bool:
    """Return whether a graph opens a function transform: vmap, grad, jvp.

    Nodes inside have the shapes of one example, and are meaningful only between the
    calls that open and close the transform.
    """
    return any(
        str(getattr(node.target, "__module__", "")).startswith(_TRANSFORMS)
        for part in module.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
        if node.op == "call_function"
    )


_TRANSFORMS = ("torch._functorch.predispatch", "torch._C._functorch")


def trace_pre_dispatch(
    function: Callable[..., Any], inputs: tuple[Any, ...]
) -> GraphModule:
    """Return the ATen-level graph of ``function``, before decomposition."""
    return _trace(function, inputs, pre_dispatch=True)


def trace_below_transforms(
    function: Callable[..., Any], inputs: tuple[Any, ...]
) -> GraphModule:
    """Return the ATen-level graph of ``function`` with its transforms applied.

    Ops are decomposed, and a batched op is one op on the whole batch.
    """
    return _trace(function, inputs, pre_dispatch=False)


def _trace(
    function: Callable[..., Any], inputs: tuple[Any, ...], *, pre_dispatch: bool
) -> GraphModule:
    trace = proxy_tensor.make_fx(
        function, pre_dispatch=pre_dispatch, _allow_non_fake_inputs=True
    )
    mode = tensor_internals.fake_mode_of(list(inputs))  # for new tensors inside
    with mode or nullcontext(), settings.keeping_saved_tensors():
        return trace(*inputs)


def record_higher_order(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Record a call of a higher-order op in the graph that is being traced.

    Args:
        target: The op, or a function that represents it.
        args: Its arguments; graph modules among them become attributes of the graph.
        kwargs: Its keyword arguments.
        run: Computes the outputs for the same fake inputs.

    Returns:
        The outputs, tracked as results of the recorded node.
    """
    mode: Any = proxy_tensor.get_proxy_mode()
    tracer = mode.tracer

    def unwrap(arg: Any) -> Any:
        if isinstance(arg, GraphModule):
            name = tracer.get_fresh_qualname("body_")
            tracer.root.register_module(name, arg)
            return tracer.create_proxy("get_attr", name, (), {})
        return tracer.unwrap_proxy(arg)

    proxies = pytree.tree_map(unwrap, args)
    with proxy_tensor.disable_proxy_modes_tracing():
        out = run()
    proxy = tracer.create_proxy("call_function", target, proxies, kwargs)
    return proxy_tensor.track_tensor_tree(out, proxy, constant=None, tracer=tracer)


def noting_tracers(note: Callable[[Any], object]) -> AbstractContextManager[None]:
    """Call ``note`` with the tracer of each trace that begins in the context."""
    mode: Any = proxy_tensor.ProxyTorchDispatchMode
    enter = mode.__enter__

    def entered(self: Any) -> Any:
        note(self.tracer)
        return enter(self)

    return threads.replaced(mode, "__enter__", entered)


def tensors_of(tracer: Any) -> list[tuple[torch.Tensor, Node]]:
    """Return the tensors of a trace that are alive, with their nodes."""
    tracked = tracer.tensor_tracker.items()
    return [(tensor, slot.proxy.node) for tensor, slot in tracked]


def number_of(node: Node) -> int | float | bool | None:
    """Return the number that a symbolic node of a trace stands for in the example."""
    number: Any = node.meta.get("val")
    if type(number) not in (torch.SymInt, torch.SymFloat, torch.SymBool):
        return None
    return number.node.hint if number.node.has_hint() else None


def checkpointed(function: Callable[..., Any], *args: Any) -> Any:
    """Run ``function`` under activation checkpointing without re-entrance."""
    untyped: Any = checkpoint
    return untyped.checkpoint(function, *args, use_reentrant=False)


PROMOTION = "amprewrite_promotion"
"""Key of the annotation on nodes that are casts of promotion."""


Changed = tuple[tuple[Any, ...], Mapping[str, Any], Sequence[tuple[Any, Any]]]
"""Changed arguments of an op, and pairs (tensor, source to copy into it after)."""


def before_each_op(change: Callable[..., Changed]) -> AbstractContextManager[None]:
    """Call ``change`` with the arguments of each ATen op before it is traced.

    The hook is below the functions of torch and above its kernels: ops inside composite
    functions pass through it too, and before any kernel could refuse them.

    Args:
        change: Function of the op, its positional arguments, its keyword arguments and
            ``cast``. ``cast(value, dtype)`` marks its cast as a promotion, unless
            ``written=True`` says that the op writes into the result of the cast.
    """
    mode: Any = proxy_tensor.ProxyTorchDispatchMode
    dispatch = mode.__torch_dispatch__

    def changed(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.pre_dispatch and operators.is_overload(func):

            def cast(value: Any, dtype: Any, *, written: bool = False) -> Any:
                note = nullcontext() if written else traceback.annotate({PROMOTION: 1})
                with note:
                    to = torch.ops.aten.to.dtype
                    return dispatch(self, to, types, (value, dtype), {})

            args, kwargs, written = change(func, args, kwargs, cast)
            result = dispatch(self, func, types, args, kwargs)
            for pair in written:
                dispatch(self, torch.ops.aten.copy_.default, types, pair, {})
            return result
        return dispatch(self, func, types, args, kwargs)

    return threads.replaced(mode, "__torch_dispatch__", changed)


def is_promotion(node: Node) -> bool:
    """Return whether ``node`` is a cast marked as a promotion.

    A constant first met as the operand of such a cast has the same mark, but is no
    cast.
    """
    noted = PROMOTION in (node.meta.get("custom") or {})
    return noted and node.target is torch.ops.aten.to.dtype


def untraced() -> AbstractContextManager[Any]:
    """Disable the tracer, so that another graph can be traced in the context."""
    return proxy_tensor.disable_proxy_modes_tracing()


class ProductMode(TorchDispatchMode):
    """Mode that computes products in another way, and leaves all else as it is.

    What runs inside it is no other program: see :func:`in_dispatch_mode`.
    """

    supports_higher_order_operators = True  # they run as they are


def in_dispatch_mode() -> bool:
    """Return whether a mode around the call sees or replaces ops: fake tensors, counts.

    Its results are not to be kept for other calls. ``torch.jit.trace`` is one.
    """
    known = ProductMode, operators.Transparent
    others = any(not isinstance(mode, known) for mode in operators.dispatch_modes())
    return others or tensor_internals.is_torchscript()


class _Dispatched(TorchDispatchMode):
    """Record of the kernels that are dispatched, with the types of their arguments."""

    def __init__(self, given: Any) -> None:
        above: Any = super()
        above.__init__()
        self.calls: list[Any] = []
        self._inputs = {id(leaf): n for n, leaf in enumerate(pytree.tree_leaves(given))}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record a call and run it."""
        del types
        self.calls.append((func, self.text((args, kwargs or {}))))
        return func(*args, **(kwargs or {}))

    def text(self, value: Any) -> str:
        """Return the text of arguments or results: tensors by identity or type."""
        return str(pytree.tree_map(self._leaf, value))

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return type(leaf), repr(leaf)
        number = self._inputs.get(id(leaf))
        return number, leaf.dtype, tuple(leaf.shape), leaf.stride()


def dispatched(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Return a comparable record of the kernels that a function dispatches.

    Args:
        function: An op, or a Python binding of one.
        args: Positional arguments; their tensors have no values.
        kwargs: Keyword arguments.

    Returns:
        The kernels with their arguments, and the result; None if the function refuses
        the arguments, or a kernel needs values.
    """
    with torch.no_grad(), _Dispatched((args, kwargs)) as record:
        try:
            result = function(*args, **kwargs)
        except Exception:  # noqa: BLE001  # kernels raise exceptions of any class
            return None
        return record.calls, record.text(result)


def leaks(tensors: WeakSet[torch.Tensor]) -> Collection[torch.Tensor]:
    """Return the tensors of a trace that objects other than torch's refer to.

    torch.export tells them apart by a function of its own (torch 2.11 to 2.15). Where a
    release has none, all count.

    Args:
        tensors: Tensors that are alive after the trace.
    """
    try:
        utilities: Any = import_module("torch.export._leakage_detection_utils")
        return utilities.find_legit_leaks_from_referrers(tensors)
    except (ImportError, AttributeError):
        return tensors


def has_captured_bodies(part: nn.Module) -> bool:
    """Return whether dynamo captured bodies of a graph, of branches or of loops.

    It keeps them for further captures, in which it reads nothing of the model again.
    Regions without gradients or with autocast are torch.export's own.
    """
    targets: list[Any] = []
    if isinstance(part, GraphModule):
        targets = [node.target for node in part.graph.nodes]
    higher = [target for target in targets if isinstance(target, HigherOrderOperator)]
    return not all(str(op.name()).startswith("wrap_with_") for op in higher)
