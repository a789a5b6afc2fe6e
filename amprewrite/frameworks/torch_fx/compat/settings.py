"""Temporary settings of torch for a capture or a run, by private names."""
# pyright: reportPrivateUsage=false

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import transformer

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.threads import (
    replaced,
    silenced,
    silent,
)

_internals: Any = torch._C
_to = torch.ops.aten.to
CASTS = frozenset((_to.dtype, _to.dtype_layout, _to.device, _to.other))
"""Operators that return the tensor itself if it has the dtype already."""


def slow_attention_path() -> AbstractContextManager[None]:
    """Disable the fast path of nn.MultiheadAttention during a capture.

    It is one opaque op that no cast can enter: the model would silently stay float32.
    """
    return replaced(torch.backends.mha, "get_fastpath_enabled", lambda: False)


def recurrent_inputs_cast() -> AbstractContextManager[None]:
    """Make recurrent layers accept inputs of another dtype than their weights.

    They refuse such inputs in Python, before any op; the op is promoted afterwards.
    """
    check: Any = nn.RNNBase.check_input

    def checked(self: Any, given: torch.Tensor, sizes: torch.Tensor | None) -> None:
        check(self, given.to(next(self.parameters()).dtype), sizes)

    return replaced(nn.RNNBase, "check_input", checked)


def distinct_casts() -> AbstractContextManager[None]:
    """Make a cast of a tensor to its own dtype return an alias, not the tensor itself.

    Otherwise the tracer takes all later readers of the tensor for readers of the cast.
    """
    mode: Any = proxy_tensor.ProxyTorchDispatchMode
    dispatch = mode.__torch_dispatch__

    def distinct(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        source = args[0] if args else None
        is_cast = self.pre_dispatch and func in CASTS and torch.is_tensor(source)
        before = _slot(source, self.tracer) if is_cast else None
        made = dispatch(self, func, types, args, kwargs or {})
        if made is not source or before is None:
            return made
        with proxy_tensor.disable_proxy_modes_tracing():
            twin = torch.ops.aten.alias.default(source)
        set_slot: Any = proxy_tensor.set_proxy_slot  # annotated for symbols only
        set_slot(twin, self.tracer, _slot(source, self.tracer))
        set_slot(source, self.tracer, before)
        return twin

    return replaced(mode, "__torch_dispatch__", distinct)


def noting_ops(
    note: Callable[[Any, tuple[Any, ...], dict[str, Any]], object],
) -> AbstractContextManager[None]:
    """Call ``note`` with each op that is traced and its arguments, before it runs."""
    mode: Any = proxy_tensor.ProxyTorchDispatchMode
    dispatch = mode.__torch_dispatch__

    def noted(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note(func, args, kwargs or {})
        return dispatch(self, func, types, args, kwargs)

    return replaced(mode, "__torch_dispatch__", noted)


def _slot(tensor: Any, tracer: Any) -> Any:
    get_slot: Any = proxy_tensor.get_proxy_slot
    return get_slot(tensor, tracer, None)


@contextmanager
def quiet() -> Generator[None]:
    """Silence warnings, and the log messages of fake tensors."""
    with silent(), silenced("torch._subclasses.fake_tensor"):
        yield


def keeping_saved_tensors() -> AbstractContextManager[object]:
    """Keep the hooks around a call on the tensors that autograd saves from a capture.

    An activation checkpoint counts the tensors that its forward saves: those of a
    capture inside of it would be saved once, and not when it is computed again. The
    innermost hooks alone apply.
    """
    if _internals._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Disable torch.autocast for a program with planned dtypes.

    Nothing is entered if autocast is off, so that an exported program has no region.
    """
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


_AUTOCAST = ("cpu", "cuda", "xpu", "mps")
"""Types of devices with an autocast of their own that users switch on."""

_NOTHING = nullcontext()


def is_any_autocast_on() -> bool:
    """Return whether torch.autocast is on, on some device."""
    return _internals._is_any_autocast_enabled()


def without_any_autocast() -> AbstractContextManager[object]:
    """Disable torch.autocast for a program with planned dtypes, on each device.

    A model may have been moved since its capture. Nothing is entered if autocast is
    off, so that an exported program has no region.
    """
    if not torch.compiler.is_compiling() and not is_any_autocast_on():
        return _NOTHING
    enabled = [device for device in _AUTOCAST if torch.is_autocast_enabled(device)]
    if not enabled:
        return nullcontext()
    stack = ExitStack()
    for device in enabled:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


OPENERS = frozenset((("transformers.utils.generic", "maybe_autocast"),))
"""Functions, by module and name, that open an autocast region only if it is on.

A region that switches autocast off has no effect without autocast, so they may open it
always. Source: transformers 5.23.
"""


def regions_opened() -> AbstractContextManager[None]:
    """Make library functions open their full-precision regions during a capture.

    They open such a region only under autocast, so they are told that it is on. It
    stays as it is for the model itself: under autocast to float32, tensors that the
    model makes in half precision would be cast, and the graph would have dtypes that no
    call has.
    """
    enabled = torch.is_autocast_enabled

    def enabled_for(*device: str) -> bool:
        return _asked_by_opener() or enabled(*device)

    return replaced(torch, "is_autocast_enabled", enabled_for)


def _asked_by_opener() -> bool:
    """Return whether the caller of this function's caller is one of OPENERS."""
    frame: Any = sys._getframe(2)
    while frame.f_globals["__name__"].startswith("amprewrite.frameworks."):
        frame = frame.f_back
    return (frame.f_globals["__name__"], frame.f_code.co_name) in OPENERS


def dynamo_settings(*, breaks: bool = False) -> AbstractContextManager[Any]:
    """Make dynamo trace ops that it refuses by default, and raise its limits.

    It refuses nn.LSTM and nn.GRU, and ops with results of data-dependent extents or
    numbers: a graph break in a loop over experts gives up the whole loop. It also
    counts the captures of a code object over all models of a class: after eight it
    silently runs the rest unrewritten. It keeps weak references to weights, for which
    ``torch.utils.swap_tensors`` refuses them, where it does not know the backend.

    Args:
        breaks: Whether graphs break at ops of data-dependent results after all.
    """
    return _dynamo_settings(breaks=breaks)()


@cache
def _dynamo_settings(*, breaks: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return the class of the context: torch makes one at each ``patch``, in 50 us."""
    untyped: Any = torch._dynamo.config
    settings: dict[str, Any] = {
        "allow_rnn": True,
        "capture_dynamic_output_shape_ops": not breaks,
        "capture_scalar_outputs": not breaks,
        "recompile_limit": 256,
        "accumulated_recompile_limit": 4096,
    }
    if hasattr(untyped, _FORGETS):  # not in older releases
        settings[_FORGETS] = True
    made: Any = untyped.patch(**settings)
    return made.__class__


_FORGETS = "invalidate_compile_context_weakrefs"
"""Setting of dynamo: whether it forgets the weights that it captured."""


def plain_causal_hint() -> AbstractContextManager[None]:
    """Make nn.Transformer accept a mask without asking if it is causal.

    The answer depends on the mask's values, which a capture does not have. It is only a
    hint for a kernel that needs no mask; without it the mask is applied.
    """

    def taken(_mask: object, is_causal: object = None, _size: object = None, /) -> bool:
        return bool(is_causal)

    return replaced(transformer, "_detect_is_causal_mask", taken)


@contextmanager
def inference_without_gradients() -> Generator[None]:
    """Replace the model's ``inference_mode`` regions by regions without gradients.

    A capture records the latter; for an inference mode it would lose that results
    computed inside require no gradient.
    """
    mode: Any = torch.inference_mode

    def enter(self: Any) -> None:
        self._before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._before and not self.mode)

    def leave(self: Any, *_: object) -> None:
        torch.set_grad_enabled(self._before)

    with replaced(mode, "__enter__", enter), replaced(mode, "__exit__", leave):
        yield


@contextmanager
def unmarked(values: Any) -> Generator[None]:
    """Restore the attributes of the tensors in ``values`` at the end.

    An export that fails leaves its dynamic dimensions marked on its arguments, and the
    next export of the same arguments fails by them.
    """
    leaves = [v for v in pytree.tree_leaves(values) if torch.is_tensor(v)]
    before = [(vars(leaf), dict(vars(leaf))) for leaf in leaves]
    try:
        yield
    finally:
        for now, then in before:
            now.clear()
            now.update(then)


def register_caches() -> None:
    """Register the caches returned by transformers models with torch.export.

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


def fork_rng(devices: Sequence[int]) -> AbstractContextManager[None]:
    """Restore the random state of the CPU and of CUDA ``devices`` at the end."""
    untyped: Any = torch.random
    return untyped.fork_rng(devices)


class _Late:
    """The ``forward`` of a graph module; its code is generated at the first use."""

    def __init__(self, compiled: Callable[[GraphModule], object]) -> None:
        self._compiled = compiled

    def __get__(self, module: GraphModule | None, owner: type) -> Any:
        if module is None:
            return self
        self._compiled(module)  # puts the function in the place of this object
        return module.forward


@contextmanager
def compiled_later() -> Generator[None]:
    """Generate the code of graph modules when it is run, not when a graph is set.

    torch generates it at each step of a capture, some 30 times for the modules of one
    export, and runs none of it: a quarter of the time of an export of BERT-base
    (measured). What the model itself makes in its forward is compiled at once.
    """
    compiled = GraphModule.recompile

    def later(self: Any) -> Any:
        if proxy_tensor.get_proxy_mode() is not None:  # the forward is running
            return compiled(self)
        info = getattr(self.graph._codegen, "pytree_info", None)
        if info is not None:
            self._in_spec, self._out_spec = info.in_spec, info.out_spec
        type(self).forward = _Late(compiled)
        return None

    with replaced(GraphModule, "recompile", later):
        yield
