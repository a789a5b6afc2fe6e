"""Operators of torch: their kinds and schemas, and modes that see them."""
# pyright: reportPrivateUsage=false

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol, TypeGuard

import torch
from torch._functorch import pyfunctorch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)

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


@lru_cache(maxsize=1024)  # torch makes the list anew each time
def formals(target: Hashable) -> Sequence[Formal]:
    """Return the arguments in the schema of ``target``; none if it has no schema."""
    schema: Any = getattr(target, "_schema", None)
    return schema.arguments if schema is not None else ()


def is_mutable(target: "OpOverload[..., Any]") -> bool:
    """Return whether an operator writes to any of its arguments."""
    return target._schema.is_mutable


def written_statistics(
    target: "OpOverload[..., Any]", args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the running statistics that a norm writes to, which no schema declares.

    They are updated where the flag of training is not False, or is no argument.

    Args:
        target: The operator.
        args: Positional arguments of its call.
        kwargs: Keyword arguments.
    """
    names = [formal.name for formal in formals(target)]
    if "running_mean" not in names or target._schema.name.endswith("no_training"):
        return []
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if any(given.get(flag) is False for flag in ("training", "use_input_stats")):
        return []
    found = (given.get(name) for name in ("running_mean", "running_var"))
    return [value for value in found if value is not None]


def is_random(target: "OpOverload[..., Any]") -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in target.tags


def is_pure(target: "OpOverload[..., Any]") -> bool:
    """Return whether an op of ATen does nothing but compute, from its operands alone.

    Ops without results check something; ops of others may do anything.
    """
    schema = target._schema
    is_aten = schema.name.startswith("aten::")
    computes = is_aten and not schema.is_mutable and bool(schema.returns)
    return computes and not is_random(target)


def results_alias(target: "OpOverload[..., Any]") -> bool:
    """Return whether the schema of an operator declares a view as a result."""
    returns = target._schema.returns
    return any(r.alias_info and not r.alias_info.is_write for r in returns)


_torch: Any = torch


Library: Any = _torch.library.Library
"""Library of operators of our own."""


register_vmap: Any = _torch.library.register_vmap
"""Function that gives an operator its rule under ``torch.func.vmap``."""


def in_transform() -> bool:
    """Return whether a transform of ``torch.func`` is being computed."""
    functorch = _native._functorch
    return (
        functorch.maybe_current_level() is not None
        or functorch.peek_interpreter_stack() is not None
    )


def outside_transforms() -> AbstractContextManager[None]:
    """Compute outside of the transforms of ``torch.func`` that are being computed."""
    untyped: Any = pyfunctorch
    return untyped.temporarily_clear_interpreter_stack()


def in_forward_derivatives() -> bool:
    """Return whether ``torch.autograd.forward_ad`` computes derivatives."""
    return _torch.autograd.forward_ad._current_level >= 0


def builtin_of(target: Any) -> Callable[..., Any]:
    """Return the builtin function that an overload calls, for the same arguments."""
    return target._op


def onednn(name: str) -> Any:
    """Return an operator of torch that runs a kernel of oneDNN, by its name."""
    return getattr(torch.ops.mkldnn, f"_{name}")


def onednn_memory(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Return the memory of a tensor in a layout of oneDNN, to be read at once.

    Args:
        tensor: The tensor, which has to outlive the result.
        length: Number of bytes.
    """
    untyped: Any = torch.ops.mkldnn
    memory = (ctypes.c_char * length).from_address(untyped.data_ptr(tensor))
    return torch.frombuffer(memory, dtype=torch.uint8)


_PLACES: tuple[Any, ...] = (_native._nn, _native._VariableFunctions, torch.Tensor)
"""Namespaces in which torch has Python bindings of its ops, by their names."""


def python_bindings(target: "OpOverload[..., Any]") -> list[Callable[..., Any]]:
    """Return the Python bindings with the name of an op of ATen.

    A binding stands for all overloads, and chooses one by the types of its arguments.
    """
    namespace, _, name = target._schema.name.partition("::")
    if namespace != "aten":
        return []
    found = (getattr(place, name, None) for place in _PLACES)
    return [binding for binding in found if callable(binding)]


_scaled_mm: Any = getattr(torch, "_scaled_mm")  # noqa: B009  # no stub exports it


def scaled_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scale: torch.Tensor,
    right_scale: torch.Tensor,
) -> torch.Tensor:
    """Return a product of two matrices of 8 bits, each times its scale, in float32.

    Args:
        left: Row-major, of m rows and k columns.
        right: Column-major, of k rows and n columns.
        left_scale: Factor of the first matrix, a float32 scalar on its device.
        right_scale: Factor of the second one.
    """
    scales, dtype = (left_scale, right_scale), torch.float32
    return _scaled_mm(left, right, *scales, out_dtype=dtype, use_fast_accum=False)


class FunctionMode(TorchFunctionMode):
    """Mode that sees, and may change, the calls of torch's functions by user code."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hand a call on to :meth:`called`."""
        del types
        return self.called(func, args, kwargs or {})

    def called(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return the result of a call."""
        return function(*args, **kwargs)


class Transparent(TorchDispatchMode):
    """Mode that sees ops and leaves them as they are: also those that dynamo captures.

    What runs inside it is the same program as outside.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: a capture inside is as one outside."""
        return True


def dispatch_modes() -> list[TorchDispatchMode]:
    """Return the modes around the call that see or replace ops, the outermost first."""
    count = _native._len_torch_dispatch_stack()
    return [*map(_native._get_dispatch_stack_at, range(count))]


def without_modes() -> AbstractContextManager[object]:
    """Disable modes and classes of tensors that see or replace ops, in the context."""
    context: Any = no_dispatch
    return context()


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a tensor of a class with ops of its own is made of.

    Any other tensor is returned itself.
    """
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    untyped: Any = tensor
    names, _ = untyped.__tensor_flatten__()
    return [inner for n in names for inner in inner_tensors(getattr(untyped, n))]
