"""Weights that are held packed, and become plain tensors where they are used.

A packed weight takes the place of the plain one, so that its bytes are held once. The
object stays: the parameter that the model, its programs and the caller refer to becomes
an instance of :class:`PackedWeight`, which has no memory of its own. It becomes a plain
parameter again, with the same bits, when a function of torch is called with it. So
``state_dict``, ``load_state_dict``, writes in place, copies, pickles and exports see
plain weights, and nothing packed is left of a weight that may have been written to.

A weight is packed only if nothing but its object holds it: no view, no array, no graph
of autograd, no other process, through which it could be read or written without asking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import (
    tensor_internals,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import Layout

KEY = "_amprewrite_packed"
"""Attribute of a packed weight: its :class:`Packed`."""

HELD = "something else holds it or its memory: a view, an array, a graph of autograd"
FOREIGN = "its memory is an array's, a file's or shared with other processes"
TRAINED = "it has a gradient or hooks"
NOT_PLAIN = "it is no plain contiguous tensor of a CPU, or of another rank"
OTHER_LAYOUT = "it is packed in the layout of another layer"
OTHER_BITS = "its blocks do not give back its bits"
PADDED = "its blocks would be much larger"

MOST_PADDING = 1 / 16
"""Largest part by which the blocks of a weight may be larger than the weight.

A matrix that is no whole number of blocks is padded: 0.1 % of the 50,257 rows of GPT-2,
twice the bytes of one of 65 by 33.
"""

MOST_CALLS = 256
"""Number of operands' shapes that a packed weight remembers to be in the layout for."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers by which values are compared bit by bit: a NaN is equal to itself."""

_lock = RLock()


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight in the layout of its kernel.

    Attributes:
        values: The packed weight.
        layout: Its layout.
        kind: Class of the plain weight.
        version: Number of writes to the plain weight.
        calls: Calls for which it is in the layout of the kernel, by :func:`call_of`;
            None for all.
    """

    values: torch.Tensor
    layout: Layout
    kind: type[torch.Tensor]
    version: int
    calls: set[object] | None = None

    def suits(self, x: torch.Tensor) -> bool:
        """Return whether it is in the layout of the kernel for an operand."""
        if self.calls is None or (call := call_of(x)) in self.calls:
            return True
        if not self.layout.suits(self.values, x.shape):
            return False
        if len(self.calls) >= MOST_CALLS:
            self.calls.clear()
        self.calls.add(call)
        return True


def call_of(x: torch.Tensor) -> object:
    """Return all by which a kernel chooses its layout for an operand."""
    return x.shape, torch.get_num_threads()


class PackedWeight(torch.Tensor):
    """Weight without memory of its own, which becomes plain where it is used.

    Its shape, dtype and the like can be read without that.
    """

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> Any:  # noqa: FBT001, FBT002  # as of a parameter
        """Return a plain parameter: libraries make new ones by the class of the old."""
        return nn.Parameter(data, requires_grad)

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type[Any]],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with plain weights in place of packed ones."""
        del types
        named = dict(kwargs or {})
        if func in _METADATA:
            with tensor_internals.without_overrides():
                return func(*args, **named)
        for leaf in pytree.tree_leaves((args, named)):
            if isinstance(leaf, PackedWeight):
                unpack(leaf)
        return func(*args, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy of the plain weight."""
        unpack(self)
        copy: Any = self.__deepcopy__
        return copy(memo)

    def __reduce_ex__(self, proto: Any) -> Any:
        """Return the plain weight for a pickle."""
        unpack(self)
        reduce: Any = self.__reduce_ex__
        return reduce(proto)

    def __repr__(self, **given: Any) -> str:
        """Return the text of the plain weight."""
        unpack(self)
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the plain weight.

        Dynamo looks for one, which marks static tensors, before it reads a tensor.
        """
        unpack(self)
        return getattr(self, name)

    def __hash__(self) -> int:
        """Return the identity of the object, as that of any tensor.

        The tracer of TorchScript puts weights into a set before it reads them.
        """
        if tensor_internals.is_torchscript_reading():
            unpack(self)
        return id(self)


_PROPERTIES: tuple[Any, ...] = (
    torch.Tensor.shape,
    torch.Tensor.dtype,
    torch.Tensor.device,
    torch.Tensor.layout,
    torch.Tensor.requires_grad,
    torch.Tensor.is_leaf,
    torch.Tensor.grad,
    torch.Tensor.grad_fn,
    torch.Tensor.ndim,
    torch.Tensor.is_cpu,
    torch.Tensor.is_cuda,
    torch.Tensor.is_meta,
    torch.Tensor.is_sparse,
)

_METADATA = {
    *(held.__get__ for held in _PROPERTIES),
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.element_size,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}
"""Functions that read no values, and hand out nothing to write to."""


def pack(weight: torch.Tensor, layout: Layout, x: torch.Tensor) -> str:
    """Make a plain weight a packed one.

    Args:
        weight: The weight.
        layout: The layout of its layer.
        x: The operand of the layer, for the shape of which it is packed.

    Returns:
        The reason why it stays plain; empty if it is packed.

    Raises:
        RuntimeError: The kernels of this CPU do not have its dtype.
    """
    with _lock, torch.inference_mode(mode=False), torch.no_grad():
        if type(weight) is PackedWeight:  # by another thread, or for another layer
            held: Packed = vars(weight)[KEY]
            return "" if held.layout == layout else OTHER_LAYOUT
        if why := _stays_plain(weight, layout.rank):
            return why
        plain = weight.detach()
        values = layout.packed(plain, x.shape)
        if is_padded(values, plain):
            return PADDED
        bits = _BITS[weight.element_size()]
        again = layout.plain(values)
        if not torch.equal(again.view(bits), plain.view(bits)):
            return OTHER_BITS
        del plain, again
        kind, version = type(weight), tensor_internals.writes(weight)
        shell = tensor_internals.without_memory(weight)
        tensor_internals.exchange(weight, shell, PackedWeight)
        calls = None if layout.is_for_all else {call_of(x)}
        vars(weight)[KEY] = Packed(values, layout, kind, version, calls)
        vars(weight)["_is_param"] = kind is nn.Parameter
    return ""


def is_padded(values: torch.Tensor, plain: torch.Tensor) -> bool:
    """Return whether a packed weight is much larger than the plain one."""
    return kernels.size(values) > plain.nbytes * (1 + MOST_PADDING)


def _stays_plain(weight: torch.Tensor, rank: int) -> str:
    """Return the reason why a weight cannot be packed now; empty if it can."""
    is_plain = type(weight) in (torch.Tensor, nn.Parameter) and weight.layout is (
        torch.strided
    )
    if not is_plain or weight.device.type != "cpu" or weight.is_inference():
        return NOT_PLAIN
    if weight.ndim != rank or not weight.is_contiguous() or not weight.numel():
        return NOT_PLAIN
    if weight.grad is not None or tensor_internals.has_hooks(weight):
        return TRAINED
    memory = weight.untyped_storage()
    if memory.nbytes() != weight.nbytes or not weight.is_leaf:
        return HELD
    if tensor_internals.is_held_elsewhere(weight):
        return HELD
    # Resizable is memory that torch allocated and has not given to NumPy.
    return FOREIGN if memory.is_shared() or not memory.resizable() else ""


def unpack(weight: torch.Tensor) -> None:
    """Make a packed weight the plain one that it was, with the same bits."""
    with _lock:
        if type(weight) is not PackedWeight:
            return  # another thread was faster
        if tensor_internals.reads_values() and not torch.is_inference_mode_enabled():
            _unpack(weight)
        else:
            threads.outside_modes(lambda: _unpack(weight))


def _unpack(weight: torch.Tensor) -> None:
    held: Packed = vars(weight)[KEY]
    with tensor_internals.without_overrides(), torch.no_grad():
        made = held.layout.plain(held.values)
        made.requires_grad_(weight.requires_grad)
        tensor_internals.set_version(made, held.version)
        tensor_internals.exchange(weight, made, held.kind)
    del vars(weight)[KEY], vars(weight)["_is_param"]
