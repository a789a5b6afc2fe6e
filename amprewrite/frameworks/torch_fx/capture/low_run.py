"""Run a model on tensors without values, with its float32 tensors in a low dtype.

Such runs show which dtypes the code of the model asks for. One on meta tensors takes a
tenth of one on fake tensors (a Llama of 30 layers: a fifth of ``torch.export``), which
can do more: they may meet real tensors, and kernels that have no meta function of their
own in C++.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.export import model_device
from amprewrite.frameworks.torch_fx.capture.warmup import copies
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    pytrees,
    tensor_internals,
)
from amprewrite.frameworks.torch_fx.compat.operators import FunctionMode

FULL = torch.float32
"""The dtype of the parameters, buffers and inputs that are lowered."""

_META = torch.device("meta")

Lowered = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
"""Function of a tensor and a dtype that returns a stand-in for it, without values."""


def run_on_fake(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    low: torch.dtype,
) -> None:
    """Run a model with its float32 tensors in ``low``, on fake tensors.

    Errors of the model pass through.

    Args:
        model: The model; it is not changed.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        low: The dtype.
    """
    mode = tensor_internals.fake_mode()

    def fake(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor_internals.faked(mode, value, dtype)

    args, kwargs = _lowered_arguments((args, kwargs), low, fake)
    with _on_stand_ins(model, low, fake), mode:
        model(*args, **kwargs)


def run_on_meta(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    low: torch.dtype,
) -> None:
    """Run a model with its float32 tensors in ``low``, on meta tensors.

    The code of the model sees the device that it is on. As :func:`run_on_fake`.
    """
    where = _Elsewhere(torch.device(model_device(model)))
    args, kwargs = _lowered_arguments((args, kwargs), low, _meta)
    with _on_stand_ins(model, low, _meta), torch.device("meta"), where:
        model(*args, **kwargs)


def _meta(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the same extents and strides.

    Raises:
        RuntimeError: It has no strides.
    """
    return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=_META)


def _lowered_arguments(given: Any, low: torch.dtype, lowered: Lowered) -> Any:
    """Return copies of arguments with stand-ins for their tensors."""

    def stand_in(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return _lowered(value, low, lowered) if is_tensor else value

    args, kwargs = given
    return pytrees.pytree.tree_map(stand_in, (copies(args), copies(dict(kwargs))))


def _on_stand_ins(
    model: nn.Module, low: torch.dtype, lowered: Lowered
) -> AbstractContextManager[None]:
    """Put stand-ins in place of the tensors of a model, in the context."""

    def stand_in(_: str, value: torch.Tensor, __: type[Any]) -> torch.Tensor:
        return _lowered(value, low, lowered)

    return module_parts.in_place(model, stand_in)


def _lowered(value: torch.Tensor, low: torch.dtype, lowered: Lowered) -> torch.Tensor:
    made = lowered(value, low if value.dtype == FULL else value.dtype)
    is_parameter = isinstance(value, nn.Parameter)
    return nn.Parameter(made, requires_grad=False) if is_parameter else made


class _Elsewhere(FunctionMode):
    """Mode in which meta tensors are on a device for all code that asks.

    Attributes:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        kind, index = device.type, str(device).partition(":")[2]
        attributes: Any = torch.Tensor  # their getters are unknown to its stubs
        self._answers: dict[Any, object] = {
            attributes.device.__get__: device,
            attributes.is_meta.__get__: False,
            attributes.is_cpu.__get__: kind == "cpu",
            attributes.is_cuda.__get__: kind == "cuda",
            attributes.get_device: int(index or -1),
        }

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function on the meta device; answer questions about the device."""
        if function in self._answers:
            return self._answers[function]
        name = getattr(function, "__name__", "")
        if name in _MOVES:
            return args[0]
        if name == "to" and len(args) > 1 and isinstance(args[1], str):
            args = args[0], torch.device(args[1]), *args[2:]
        args = tuple(_on_meta(arg) for arg in args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _META}
        return function(*args, **kwargs)


_MOVES = frozenset(("cpu", "cuda"))
"""Methods named after the device that they move to."""


def _on_meta(arg: Any) -> Any:
    return _META if isinstance(arg, torch.device) else arg
