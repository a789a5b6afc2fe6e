"""Private, untyped or moving names of torch; each has a test."""
# pyright: reportPrivateUsage=false
# The only module that uses private names.

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Protocol, TypeGuard

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, traceback
from torch.fx import graph as fx_graph
from torch.fx import node as fx_node
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree, checkpoint

from amprewrite.frameworks.torch_fx.compat import tensor_internals, threads


class Trees(Protocol):
    """The functions used from torch's pytree module."""

    def tree_leaves(self, tree: Any, /) -> list[Any]:
        """Return the leaves."""
        ...

    def tree_map(self, func: Callable[[Any], Any], tree: Any, /) -> Any:
        """Return the same structure with ``func`` of each leaf."""
        ...

    def tree_flatten(self, tree: Any, /) -> tuple[list[Any], Any]:
        """Return the leaves and the structure."""
        ...

    def tree_unflatten(self, leaves: Iterable[Any], treespec: Any, /) -> Any:
        """Return a structure with other leaves."""
        ...


pytree: Trees = _pytree
"""Pytree functions of torch; there is no public name in torch 2.13."""

HigherOrderOperator = torch._ops.HigherOrderOperator
"""Operator with graphs as arguments."""

OpOverload = torch._ops.OpOverload
"""Type of one overload of an operator."""


_native: Any = torch._C
DATA_ATTRIBUTE: object = getattr(_native._autograd, "_get_data_attr", None)
"""Function in dynamo graphs for ``x.data``; tracers lose track of its result."""


_modes: Any = torch.autograd.grad_mode
INFERENCE: tuple[object, object] = (
    _modes._enter_inference_mode,
    _modes._exit_inference_mode,
)
"""Functions in dynamo graphs that enter and leave an inference mode."""


class Formal(Protocol):
    """One formal argument in the schema of an operator."""

    name: str
    type: object
    default_value: object
    kwarg_only: bool
    alias_info: Any


def is_overload(target: object) -> TypeGuard["OpOverload[..., Any]"]:
    """Return whether ``target`` is one overload of an operator."""
    return isinstance(target, OpOverload)


def is_higher_order(target: object) -> TypeGuard[HigherOrderOperator]:
    """Return whether ``target`` is an operator with graphs as arguments."""
    return isinstance(target, HigherOrderOperator)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether ``value`` is a list or a tuple."""
    return isinstance(value, (list, tuple))


@lru_cache(maxsize=1024)  # torch makes the list anew each time
def formals(target: Hashable) -> Sequence[Formal]:
    """Return the arguments in the schema of ``target``; none if it has no schema."""
    schema: Any = getattr(target, "_schema", None)
    return schema.arguments if schema is not None else ()


def is_mutable(target: "OpOverload[..., Any]") -> bool:
    """Return whether an operator writes to any of its arguments."""
    return target._schema.is_mutable


def results_alias(target: "OpOverload[..., Any]") -> bool:
    """Return whether the schema of an operator declares a view as a result."""
    returns = target._schema.returns
    return any(r.alias_info and not r.alias_info.is_write for r in returns)


def positional(node: Node) -> tuple[Any, ...]:
    """Return the positional arguments of ``node``, typed as Any."""
    return node.args


def extents(tensor: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    """Return the shape of ``tensor``; torch does not declare symbols in it."""
    return tuple(tensor.shape)


def storage_identity(tensor: torch.Tensor) -> int:
    """Return an identity of a tensor's storage, equal for tensors that share it.

    Raises:
        NotImplementedError: A sparse tensor has no storage.
        RuntimeError: As above.
    """
    return tensor.untyped_storage()._cdata


def writes(tensor: torch.Tensor) -> int:
    """Return how often ``tensor`` was written to; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def call_structure(graph: Graph) -> Any:
    """Return the calling convention of an exported graph; None if it has none."""
    return getattr(graph._codegen, "pytree_info", None)


def set_call_structure(
    graph: Graph, names: list[str], inside: Any, outside: Any
) -> None:
    """Give ``graph`` the calling convention of exported graphs.

    Args:
        graph: The graph.
        names: Names of the arguments.
        inside: Structure of the arguments, from :func:`structure_of`.
        outside: Structure of the output.
    """

    def spec(structure: Any) -> Any:
        if structure is None:
            return pytree.tree_flatten(0)[1]
        kind, context, parts = structure
        return _pytree.TreeSpec(kind, context, [spec(part) for part in parts])

    info = fx_graph._PyTreeInfo(names, spec(inside), spec(outside))
    graph.set_codegen(fx_graph._PyTreeCodeGen(info))


def structure_of(spec: Any) -> Any:
    """Return the kind, context and parts of ``spec``; None for a leaf.

    The result can be pickled without the warning that ``spec`` itself gives.
    """
    if spec.is_leaf():
        return None
    return spec.type, spec.context, [structure_of(part) for part in spec.children()]


def map_arguments(arguments: Any, function: Callable[[Any], Any]) -> Any:
    """Return arguments of a node with ``function`` applied to their innermost parts."""
    return fx_node.map_aggregate(arguments, function)


def hidden_buffers(module: nn.Module) -> set[str]:
    """Return the names of the buffers that are not part of ``state_dict``."""
    return module._non_persistent_buffers_set


def buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the buffers of ``module`` itself, as a dict that can be changed.

    TorchScript's own buffers are out of reach.
    """
    return {} if isinstance(module, torch.jit.ScriptModule) else module._buffers


def parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the parameters of ``module`` itself, as a dict that can be changed."""
    return module._parameters


def backward_hooks(module: nn.Module) -> int:
    """Return the number of backward hooks and backward pre-hooks on ``module``."""
    hooks: Any = module
    return len(hooks._backward_hooks) + len(hooks._backward_pre_hooks)


def children(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the direct submodules, even if attributes shadow their names."""
    return module._modules


def modules_by_path(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return ``model`` and all its submodules, each under all of its paths."""
    untyped: Any = model
    return untyped.named_modules(remove_duplicate=False)


def share_state(module: nn.Module, model: nn.Module) -> None:
    """Share the parameters, buffers and submodules of ``model`` with ``module``."""
    module._parameters = model._parameters
    module._buffers = model._buffers
    module._modules = model._modules
    module._non_persistent_buffers_set = model._non_persistent_buffers_set


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


def compile_in_place(model: nn.Module) -> None:
    """Compile ``model`` in place with torch's default compiler."""
    untyped: Any = model
    untyped.compile()


def fork_rng(devices: Sequence[int]) -> AbstractContextManager[None]:
    """Restore the random state of the CPU and of CUDA ``devices`` at the end."""
    untyped: Any = torch.random
    return untyped.fork_rng(devices)


def checkpointed(function: Callable[..., Any], *args: Any) -> Any:
    """Run ``function`` under activation checkpointing without re-entrance."""
    untyped: Any = checkpoint
    return untyped.checkpoint(function, *args, use_reentrant=False)


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
    with (
        tensor_internals.fake_mode_of(list(inputs)) or nullcontext()
    ):  # what is made inside is fake too
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


PROMOTION = "amprewrite_promotion"
"""Key of the annotation on nodes that are casts of promotion."""


class BeforeOp(Protocol):
    """Hook that changes the arguments of an operator before it is traced."""

    def __call__(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        cast: Callable[..., torch.Tensor],
        /,
    ) -> tuple[tuple[Any, ...], Mapping[str, Any], Sequence[tuple[Any, Any]]]:
        """Return the changed arguments, and pairs (tensor, source to copy after).

        ``cast(value, dtype)`` marks its cast as a promotion, unless ``written=True``
        says that the op writes into the result of the cast.
        """
        ...


@contextmanager
def before_each_op(change: BeforeOp) -> Generator[None]:
    """Call ``change`` with the arguments of each ATen op before it is traced.

    The hook is below the functions of torch and above its kernels: ops inside composite
    functions pass through it too, and before any kernel could refuse them.
    """
    mode: Any = proxy_tensor.ProxyTorchDispatchMode
    dispatch = mode.__torch_dispatch__

    def changed(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.pre_dispatch and is_overload(func):

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

    with threads.replaced(mode, "__torch_dispatch__", changed):
        yield


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
