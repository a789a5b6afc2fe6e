"""Names of torch that are private or move between versions; each has a test."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch.utils import _pytree as _torch_pytree

pytree: Any = _torch_pytree
"""torch's tree functions; there is no public name in torch 2.13."""

OpOverload: Any = torch._ops.OpOverload
"""One overload of an operator."""

HigherOrderOperator: Any = torch._ops.HigherOrderOperator
"""An operator that takes a graph."""


@contextmanager
def slow_attention_path() -> Iterator[None]:
    """Switch off nn.MultiheadAttention's fast path while capturing.

    It is one opaque op that no cast reaches: the model would silently stay float32.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def neutral_autocast(device: str) -> Iterator[None]:
    """Make autocast look enabled, with a dtype that changes nothing.

    Model code that asks whether autocast is on before it opens a full-precision region
    (transformers' maybe_autocast) leaves no region in the graph otherwise. With the
    dtype float32 every cast of autocast is of float32 to itself.
    """
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)  # torch's own signature
    torch.set_autocast_dtype(device, torch.float32)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def allow_rnn() -> Any:  # torch's own context manager
    """Let dynamo trace nn.LSTM and nn.GRU, which it refuses by default."""
    return torch._dynamo.config.patch(allow_rnn=True)


def trace_pre_dispatch(
    function: Callable[..., Any], inputs: tuple[Any, ...]
) -> torch.fx.GraphModule:
    """Return the ATen-level graph of ``function``, before decomposition."""
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  # slow import

    trace = make_fx(function, pre_dispatch=True, _allow_non_fake_inputs=True)
    with fake_mode_of(list(inputs)) or nullcontext():  # what is made inside is fake too
        return trace(*inputs)


def record_higher_order(
    target: Any, args: tuple[Any, ...], kwargs: Any, run: Any
) -> Any:  # any op
    """Record a call of a higher-order op in the graph that is being traced.

    Args:
        target: The op, or a function that stands for it.
        args: Its arguments; graph modules among them become attributes of the graph.
        kwargs: Its keyword arguments.
        run: Gives the outputs for the same fake inputs.
    """
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415  # slow import

    mode: Any = proxy_tensor.get_proxy_mode()
    tracer = mode.tracer

    def unwrap(arg: Any) -> Any:  # any argument
        if isinstance(arg, torch.fx.GraphModule):
            name = tracer.get_fresh_qualname("body_")
            tracer.root.register_module(name, arg)
            return tracer.create_proxy("get_attr", name, (), {})
        return tracer.unwrap_proxy(arg)

    proxies = pytree.tree_map(unwrap, args)
    with proxy_tensor.disable_proxy_modes_tracing():
        out = run()
    proxy = tracer.create_proxy("call_function", target, proxies, kwargs)
    return proxy_tensor.track_tensor_tree(out, proxy, constant=None, tracer=tracer)


def untraced() -> Any:  # torch's own context manager
    """Switch the tracer off, so that another graph can be traced inside."""
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415  # slow import

    return proxy_tensor.disable_proxy_modes_tracing()


def fake_mode_of(values: list[Any]) -> Any:
    """Return the fake mode that ``values`` belong to; None if there is none.

    Not the ambient one: dynamo's example values have a mode of their own.
    """
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415  # slow import

    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


@contextmanager
def plain_causal_hint() -> Iterator[None]:
    """Let nn.Transformer take a mask without asking whether it is causal.

    The question depends on the mask's values, which a capture does not have. The answer
    is only a hint for a kernel that needs no mask; without it the mask is applied.
    """
    from torch.nn.modules import transformer  # noqa: PLC0415  # beside its use

    name = "_detect_is_causal_mask"
    asked = getattr(transformer, name)
    setattr(transformer, name, lambda mask, is_causal=None, size=None: bool(is_causal))  # noqa: ARG005  # torch's own names
    try:
        yield
    finally:
        setattr(transformer, name, asked)


def register_caches() -> None:
    """Tell torch.export about the caches that transformers models hand back.

    transformers registers its own classes only when asked to.
    """
    if "transformers" not in sys.modules:
        return
    try:
        executorch: Any = import_module("transformers.integrations.executorch")
        register = executorch.register_dynamic_cache_export_support
    except (ImportError, AttributeError):  # an older transformers, without it
        return
    register()


@contextmanager
def noting_checkpoints(note: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` whenever an activation checkpoint without re-entrance is opened.

    The public function may be bound under any name in the model's module, so the
    function that it calls is replaced.
    """
    import torch.utils.checkpoint as module  # noqa: PLC0415  # beside its use

    name = "_checkpoint_without_reentrant_generator"
    opened = getattr(module, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return opened(*args, **kwargs)

    setattr(module, name, noted)
    try:
        yield
    finally:
        setattr(module, name, opened)
