"""Layers that read packed weights, the weights, and a trial of each kind of layer.

A packed weight takes the place of the plain one, so that its bytes are stored once. The
object stays: the parameter that the model, its programs and the caller refer to becomes
an instance of :class:`PackedWeight`, which has no memory of its own. It becomes a plain
parameter again, with the same bits, when a function of torch is called with it. So
``state_dict``, ``load_state_dict``, writes in place, copies, pickles and exports see
plain weights, and no packed form is left of a weight that may have been written to.

A weight is packed only if nothing but its object refers to its memory: no view, no
array, no graph of autograd, no other process, through which the weight could be read or
written without asking.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import nn

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.compat import tensor_internals, threads
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.lowering.packing import kernels

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
    layout: kernels.Layout
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


_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad"),
    *("grad_fn", "ndim", "is_cpu", "is_cuda", "is_meta", "is_sparse"),
)

_METHODS = (
    *("size", "dim", "numel", "nelement", "element_size"),
    *("is_floating_point", "is_complex"),
)

_METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
    *(getattr(torch.Tensor, name) for name in _METHODS),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}
"""Functions that read no values, and hand out nothing to write to."""


def pack(weight: torch.Tensor, layout: kernels.Layout, x: torch.Tensor) -> str:
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
        tensor_internals.set_writes(made, held.version)
        tensor_internals.exchange(weight, made, held.kind)
    del vars(weight)[KEY], vars(weight)["_is_param"]


MOST_PACKS = 8
"""Number of times that a layer packs a weight.

A model is converted, and its weights are loaded, saved or copied a few times, which
unpacks them. Where they are read or written between all calls, packing would take
longer than it saves: one of 768 by 3,072, and the look whether its bits come back,
takes as long as three calls with 16 rows (measured in float32 on an AVX2 core).
"""

FAILED = (
    "a weight of shape {} and {} was not packed for the kernels of this CPU, and the "
    "layers that read it run as slowly as before: {}"
)
"""Warning about a weight that the kernels refuse although they took one like it."""


@dataclass(eq=False)
class PackedLayer:
    """Layer with a packed weight, and an activation or a sum in its kernel.

    It has no derivative. A weight that is plain when it is called is packed, or read as
    it is, if it cannot be packed now.

    Attributes:
        plain: The layer of an operand, a plain weight and a bias or None.
        layout: The layout of its weight.
        shape: Shape of the operand, as a hint.
        epilogue: Ops of the kernel on the accumulator.
        after: The same ops and ``bound``, of the rounded result of ``plain`` and the
            rest; None for none.
        bound: Op that is done in place on the result of the kernel; None for none.
        packs: Number of times that it packed a weight.
    """

    plain: Callable[[Any, Any, Any], Any]
    layout: kernels.Layout
    shape: tuple[int, ...]
    epilogue: kernels.Epilogue = kernels.NONE
    after: Callable[..., Any] | None = None
    bound: Callable[[Any], Any] | None = None
    packs: int = 0
    _run: Callable[..., Any] = field(init=False)
    _padded: set[object] = field(init=False, default_factory=set[object])

    __name__ = "packed_layer"

    def __post_init__(self) -> None:
        """Look up the kernel."""
        run, bound = self.layout.kernel(self.epilogue), self.bound
        self._run = run if bound is None else lambda *given: bound(run(*given))

    def __call__(self, x: Any, weight: torch.Tensor, bias: Any, *rest: Any) -> Any:
        """Return the result.

        Args:
            x: The operand.
            weight: The weight, packed or plain.
            bias: The bias, or None.
            rest: The second operand of a sum.
        """
        held: Packed | None = vars(weight).get(KEY)
        if held is None or not (held.layout == self.layout and held.suits(x)):
            held = self._packed(weight, x)
            if held is None:
                return self.unpacked(x, weight, bias, *rest)
        return self._run(x, held.values, bias, *rest)

    def unpacked(self, x: Any, weight: torch.Tensor, bias: Any, *rest: Any) -> Any:
        """Return the result by a plain weight, rounded as often as in the plan."""
        found = self.plain(x, weight, bias)
        return found if self.after is None else self.after(found, *rest)

    def _packed(self, weight: torch.Tensor, x: torch.Tensor) -> Packed | None:
        """Return a weight packed now; None if it stays plain."""
        call = call_of(x)
        if self.packs >= MOST_PACKS or call in self._padded:
            return None
        if vars(weight).get(KEY) is not None:  # in the layout for other operands
            unpack(weight)
        try:
            why = pack(weight, self.layout, x)
        except RuntimeError as error:
            self.packs = MOST_PACKS
            warn(FAILED.format(tuple(weight.shape), weight.dtype, error))
            return None
        if why == PADDED:
            self._padded.add(call)
        if why:
            return None
        self.packs += 1
        return vars(weight).get(KEY)


# Try a kernel of packed weights, beside the plain one, before a program uses it.

LARGER = "its blocks would take {:,} bytes in place of {:,}"
DIFFERS = "its result differs by {:.2g} from that of the plain kernel"
LOST = "its result is a number where that of the plain kernel is NaN"

_SLACK = 4.0
"""Factor of the rounding error of results that two kernels may differ by.

Each rounds its sum, and perhaps the result of the activation; the derivatives of
activations are below 1.2.
"""


class Tried(NamedTuple):
    """Result of a trial.

    Attributes:
        why: The reason why a layer cannot run with a packed weight; empty if it can.
        padding: Bytes that fill the blocks of the weight.
    """

    why: str
    padding: int = 0


_trials: dict[object, Tried] = {}
"""Results by layout, shape, dtype and epilogue."""


def tried(layer: PackedLayer, weight: torch.Size, dtype: torch.dtype) -> Tried:
    """Return whether a layer can run with a packed weight.

    It is tried once for each layout, shape, dtype and epilogue: on a small operand, and
    a weight of small fractions that are exact in each dtype.

    Args:
        layer: The layer.
        weight: Shape of its plain weight.
        dtype: Dtype of all operands.
    """
    operand = None if layer.layout.is_for_all else layer.shape
    key = (layer.layout, weight, operand, dtype, layer.epilogue)
    if key not in _trials:
        _trials[key] = _try(layer, weight, dtype)
    return _trials[key]


def _try(layer: PackedLayer, shape: torch.Size, dtype: torch.dtype) -> Tried:
    layout = layer.layout
    given, outputs = layout.example(shape), layout.outputs(shape)
    with torch.inference_mode(mode=False), torch.no_grad():
        weight, x = _fractions(shape, 13, dtype), _fractions(given, 7, dtype)
        bias = _fractions([outputs], 5, dtype)
        sums = layout.plain_layer(x, weight, bias)
        rest = [_fractions(sums.shape, 3, dtype)] if layer.epilogue.sums else []
        run = layout.kernel(layer.epilogue)
        try:
            found = run(x, layout.packed(weight, given), bias, *rest)
            packed = layout.packed(weight, layer.shape)  # perhaps in other blocks
            size = kernels.size(packed)
        except (RuntimeError, NotImplementedError) as error:
            return Tried(str(error).strip().split("\n")[0])
        if is_padded(packed, weight):
            return Tried(LARGER.format(size, weight.nbytes))
        wanted = sums if layer.after is None else layer.after(sums, *rest)
        # Products of fractions of 1/64: sums in float32 err by as many units at most.
        rounding = torch.finfo(dtype).eps * (sums.abs() + wanted.abs()).double()
        sizes = layout.plain_layer(x.float().abs(), weight.float().abs(), None)
        order = torch.finfo(torch.float32).eps * weight.numel() / outputs * sizes
        error = (found.double() - wanted.double()).abs()
        excess = error - _SLACK * (rounding + order.double())
        worst = excess.argmax()
        differs = not excess.flatten()[worst] <= 0
        nothing = torch.full_like(x, math.nan)
        kept = run(nothing, layout.packed(weight, given), bias, *rest).isnan()
        if (layout.plain_layer(nothing, weight, bias).isnan() & ~kept).any():
            return Tried(LOST)
    return Tried(DIFFERS.format(error.max()) if differs else "", size - weight.nbytes)


def _fractions(shape: Sequence[int], period: int, dtype: torch.dtype) -> torch.Tensor:
    """Return multiples of 1/64 around zero, with that period."""
    count = prod(shape)
    numbers = torch.arange(period).sub(period // 2).div(64).to(dtype)
    return numbers.repeat(count // period + 1)[:count].view(*shape)
