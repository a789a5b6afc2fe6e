"""Extents, storages and versions of tensors; fake tensors, which have no values."""
# pyright: reportPrivateUsage=false

import sys
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, TypeGuard

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from amprewrite.frameworks.torch_fx.compat.operators import Transparent, dispatch_modes

_native: Any = torch._C


def fake_mode() -> Any:
    """Return a fake mode: nothing is computed, and real tensors may be operands."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def symbolic_kernels() -> AbstractContextManager[None]:
    """Make ops on fake tensors take symbolic extents, as while a program is traced.

    Without it a meta function that calls other ops on them (``baddbmm``) fails.
    """
    return enable_python_dispatcher()


def faked(mode: Any, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a fake tensor like ``value``, possibly of another dtype."""
    return retyped(mode.from_tensor(value.detach(), static_shapes=True), dtype)


def fake_mode_of(values: list[Any]) -> Any:
    """Return the fake mode that ``values`` belong to; None if there is none.

    It is not the ambient mode: dynamo's example values have a mode of their own.
    """
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


def retyped(val: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a fake tensor like ``val`` in another dtype, with its own storage.

    It is built directly: a dispatched cast of a fake tensor takes ten times as long.
    """
    if not isinstance(val, FakeTensor) or val.layout is not torch.strided:
        return val.to(dtype)
    if any(isinstance(n, torch.SymInt) for n in (*val.shape, *val.stride())):
        return val.to(dtype)
    made = torch.empty_strided(val.shape, val.stride(), dtype=dtype, device="meta")
    return FakeTensor(val.fake_mode, made, val.device)


class Fakes:
    """Fake tensors of one mode, made from descriptions."""

    def __init__(self) -> None:
        """Begin without a storage."""
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def storage(self, number: int, size: int) -> torch.UntypedStorage:
        """Return the storage of a number, of ``size`` bytes; it has no memory."""
        if number not in self._storages:
            self._storages[number] = torch.UntypedStorage(size, device="meta")
        return self._storages[number]

    def tensor(
        self,
        storage: torch.UntypedStorage,
        dtype: torch.dtype,
        device: torch.device,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> torch.Tensor:
        """Return a fake tensor on ``device`` with ``storage``."""
        made = torch.empty(0, dtype=dtype, device="meta")
        return FakeTensor(
            self._mode, made.set_(storage, offset, shape, strides), device
        )


def source_of(fake: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a tracer made a fake one from; None if it computed it."""
    if not isinstance(fake, FakeTensor):
        return None
    made: Any = fake.fake_mode.fake_tensor_converter.meta_converter
    numbers = {number for number, held in made.tensor_memo.items() if held is fake}
    sources = made.describer.lookup_tensor.items()
    return next((held for held, number in sources if number in numbers), None)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether a transform of ``torch.func`` has wrapped a tensor."""
    return _native._functorch.is_functorch_wrapped_tensor(tensor)


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return one sample of a tensor that transforms of ``torch.func`` have wrapped.

    It has the shape that functions inside of the transforms see, and no record of them;
    any other tensor is returned itself.

    Args:
        tensor: The tensor; outside of the transforms.
    """
    if not is_transformed(tensor):
        return tensor
    with torch.no_grad():
        made = _unwrapped(tensor).detach().clone()
    return made.requires_grad_(tensor.requires_grad)


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    functorch = _native._functorch
    if not is_transformed(tensor):
        return tensor
    inner = _unwrapped(functorch.get_unwrapped(tensor))
    if functorch.is_batchedtensor(tensor):
        return inner.select(functorch.maybe_get_bdim(tensor), 0)
    return inner


def varying(value: torch.Tensor) -> list[int]:
    """Return the dimensions with a symbolic extent."""
    return [n for n, d in enumerate(value.shape) if isinstance(d, torch.SymInt)]


def example_of(number: Any) -> Any:
    """Return the value of a symbolic number in the example of a tracer.

    It is 2 where the example does not give it: the number depends on data.
    """
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    untyped: Any = number
    hint = untyped.node.hint
    return 2 if hint is None else hint


def stand_in(fake: torch.Tensor, device: str = "") -> torch.Tensor:
    """Return a tensor like a fake one: ones; zeros of integers, which may be indices.

    Args:
        fake: The fake tensor; symbolic extents have the values of the tracer's example.
        device: Device of the result; empty for that of the tensor.
    """
    shape: list[int] = [*map(example_of, fake.shape)]
    fill = fake.is_floating_point() or fake.is_complex() or fake.dtype == torch.bool
    make = torch.ones if fill else torch.zeros
    return make(shape, dtype=fake.dtype, device=device or fake.device)


def extents(tensor: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    """Return the shape of ``tensor``: symbols, and numbers where there is one value.

    A tracer leaves a symbol that it found to have one value alone as it is.
    """
    return tuple(map(_extent, tensor.shape))


def _extent(number: Any) -> int | torch.SymInt:
    if not isinstance(number, torch.SymInt):
        return number
    untyped: Any = number
    value = untyped.node.maybe_as_int()
    return number if value is None else value


def storage_identity(tensor: torch.Tensor) -> int:
    """Return an identity of a tensor's storage, equal for tensors that share it.

    Raises:
        NotImplementedError: A sparse tensor has no storage.
        RuntimeError: As above.
    """
    return tensor.untyped_storage()._cdata


def memory_identity(memory: torch.UntypedStorage) -> int:
    """Return the identity of a storage, as :func:`storage_identity`."""
    return memory._cdata


def writes(tensor: torch.Tensor) -> int:
    """Return how often ``tensor`` was written to; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


version = attrgetter("_version")
"""Return how often a tensor was written to that is no inference tensor."""


def set_writes(tensor: torch.Tensor, number: int) -> None:
    """Set how often a tensor was written to, for example after values were put back.

    A gradient that needs the values, and was recorded before, is computed then.
    """
    _native._autograd._unsafe_set_version_counter((tensor,), (number,))


def counts_writes(tensor: torch.Tensor) -> bool:
    """Return whether torch counts the writes to a tensor, which has an address."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.layout is torch.strided and not tensor.is_inference()


def has_own_values(tensor: torch.Tensor) -> bool:
    """Return whether the values of ``tensor`` can be read here.

    Not those of a class with ops of its own (fake tensors, tensors of several devices),
    nor where :func:`reads_values` is false.
    """
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and reads_values()


def reads_values() -> bool:
    """Return whether no tracer and no transform is active, which would see it."""
    if is_torchscript() or _native._functorch.peek_interpreter_stack():
        return False
    return not _native._len_torch_dispatch_stack() or all(
        isinstance(mode, Transparent) for mode in dispatch_modes()
    )


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a plain number can be read from ``tensor`` here.

    Not from a sparse or nested one, one without values, or one that a transform batches
    (``is_grads_batched=True`` has a batch of its own); not in a compiled function, nor
    while a graph of CUDA is recorded, which a read ends.
    """
    if torch.compiler.is_compiling() or not has_own_values(tensor):
        return False
    legacy = _native._functorch.is_legacy_batchedtensor(tensor)
    batched = legacy or is_transformed(tensor)
    dense = tensor.layout is torch.strided and not tensor.is_nested
    recorded = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return dense and not (batched or has_no_values(tensor) or recorded)


def is_torchscript() -> bool:
    """Return whether ``torch.jit.trace`` records the ops that run."""
    return _native._get_tracing_state() is not None


def is_torchscript_reading() -> bool:
    """Return whether ``torch.jit.trace`` called the caller of the caller."""
    return sys._getframe(2).f_globals.get("__name__") == "torch.jit._trace"


def may_share_storage(one: object, other: object) -> bool:
    """Return whether two values are, or may be, views of one storage."""
    for value in (one, other):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return True
    tensors: Any = (one, other)
    first, second = map(storage_identity, tensors)
    return first == second


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a strided one of no class with ops of its own."""
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    return type(tensor) in plain and tensor.layout is torch.strided


def storage_key(tensor: torch.Tensor) -> Any:
    """Return a key of the storage of a tensor: no later storage ever has it.

    It holds the address of the storage, not its memory.
    """
    return StorageWeakRef(tensor.untyped_storage())


without_overrides: Any = _native.DisableTorchFunction
"""Context in which functions of torch take tensors of any class as plain ones."""


def is_held_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether anything but its Python object holds a tensor, or its memory.

    Views and arrays hold the memory, a graph of autograd holds the tensor. Also true of
    a view: then its base does.
    """
    untyped: Any = tensor
    memory = untyped.untyped_storage()
    mine = 2  # the tensor, and the object by which it is counted
    return untyped._use_count() > 1 or _native._storage_Use_Count(memory._cdata) > mine


def exchange(tensor: torch.Tensor, other: torch.Tensor, kind: type[Any]) -> None:
    """Give a tensor the contents of another one, and the class ``kind``.

    The object stays the same, with its attributes; the other one is not to be used any
    more. ``torch.utils.swap_tensors`` does the same, but refuses weak references.

    Raises:
        RuntimeError: Something in torch holds the tensor weakly.
    """
    _native._swap_tensor_impl(tensor, other)
    tensor.__class__ = kind


class _NoMemory(torch.Tensor):
    """Class that tensors without memory are made with: an op on one is an error."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        msg = f"{func} was called with a tensor that has no memory"
        raise RuntimeError(msg)


def without_memory(like: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all of another one but its memory.

    To call an op with it is an error of torch.
    """
    make: Any = torch.Tensor._make_wrapper_subclass
    same = ("dtype", "device", "requires_grad")
    others = {name: getattr(like, name) for name in same}
    return make(_NoMemory, like.shape, strides=like.stride(), **others)


def has_hooks(tensor: Any) -> bool:
    """Return whether hooks run when a tensor gets a gradient."""
    after = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return bool(tensor._backward_hooks) or bool(after)


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for another in a trace."""
    return isinstance(tensor, FakeTensor)


def has_no_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for another: it is fake, or on no device."""
    return is_fake(tensor) or tensor.device.type == "meta"


def has_values(value: Any) -> TypeGuard[torch.Tensor]:
    """Return whether an object is a tensor with values."""
    return isinstance(value, torch.Tensor) and not has_no_values(value)


def take_content(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Give a tensor the values and the class of another, which takes its own.

    As ``torch.utils.swap_tensors``, but weak references to the tensor may be left: they
    find its new content.

    Raises:
        RuntimeError: An object in C++ refers to one of them.
    """
    one: Any = tensor
    two: Any = other
    _native._swap_tensor_impl(one, two)
    one.__class__, two.__class__ = two.__class__, one.__class__
    one.__dict__, two.__dict__ = two.__dict__, one.__dict__
