"""Time contractions, other ops and casts of torch on a device."""

import platform
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.nn import functional

from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.measure.timing import (
    WIDTH,
    Kernel,
    Scope,
    calibrate,
    medians,
    processor,
    product,
    scope_of,
)
from amprewrite.plan.hardware import (
    FULL,
    Calibration,
    Device,
    Kernels,
    Kind,
    named_device,
)

Op = Callable[..., torch.Tensor]


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


ELEMENTWISE: Mapping[str, tuple[Op, int]] = {
    "add": (torch.add, 2),
    "exp": (torch.exp, 1),
    "gelu": (functional.gelu, 1),
    "layer_norm": (_layer_norm, 1),
    "mean": (_mean, 1),
    "mul": (torch.mul, 2),
    "relu": (torch.relu, 1),
    "sigmoid": (torch.sigmoid, 1),
    "silu": (functional.silu, 1),
    "tanh": (torch.tanh, 1),
}
"""Ops by canonical name, with their numbers of operands."""

ROW = 64
"""Length of the last dimension of their operands."""


def device_of(
    model: object,
    args: tuple[object, ...] | None,
    kwargs: Mapping[str, object] | None,
) -> Device:
    """Return the device of a model: that of its first weight, or of its arguments."""
    weights: Any = getattr(model, "state_dict", dict)
    held: Any = weights() if callable(weights) else weights
    given = chain(held.values(), args or (), (kwargs or {}).values())
    tensors = (x for x in given if isinstance(x, torch.Tensor))
    first = next((x.device for x in tensors if x.device.type != "meta"), None)
    return describe(first or torch.device("cpu"))


KINDS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}
"""Kinds of devices by the names that users give them."""


def named(name: str) -> Device:
    """Return the device called ``name``; see :func:`named_device`.

    Raises:
        UnsupportedError: There is no device of that name.
    """

    def present(kind: str) -> Device | None:
        there = kind == "cpu" or torch.cuda.is_available()
        return describe(torch.device(kind)) if there else None

    return named_device(name, "torch", str(torch.__version__), KINDS, present)


def default_target() -> str:
    """Return ``eager``: a module runs op by op, unless it is compiled."""
    return "eager"


def kernels(_device: Device, _found: Calibration | None) -> Kernels:
    """Return the accumulator dtypes of low contractions: kernels of torch round."""
    return Kernels()


def default_device() -> torch.device:
    """Return the available accelerator, or the CPU."""
    accelerator = torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if accelerator else None
    return found or torch.device("cpu")


def describe(device: torch.device) -> Device:
    """Return ``device`` with the conditions that its timings depend on.

    The speed of float32 on a GPU depends on whether it may use TF32.
    """
    if device.type == "cpu":
        name, instructions = processor()
        features = f"{instructions}, {torch.get_num_threads()} threads".lstrip(", ")
        name = name or platform.machine()
    else:
        features = f"float32 precision {torch.get_float32_matmul_precision()}"
        name = device.type
        if device.type == "cuda" and torch.cuda.is_available():  # fake tensors: not
            name = torch.cuda.get_device_name(device)
    return Device(
        framework="torch",
        version=str(torch.__version__),
        kind=device.type,
        name=name,
        features=features,
    )


def measure(
    device: torch.device | None = None, scope: Scope | None = None
) -> Calibration:
    """Time contractions, other ops and casts on ``device``.

    Args:
        device: The device; None for the default accelerator, or the CPU.
        scope: Shapes to time; None for those of the kind of device.
    """
    device = device or default_device()
    scope = scope or scope_of(device.type)
    bench = _Bench(device, scope.elements)
    with torch.no_grad():
        linear = bench.contraction(product(WIDTH, WIDTH), FULL)
        medians({FULL: linear}, bench.wait, scope.seconds)  # the clock speeds up
        return calibrate(bench, describe(device), scope)


class _Bench:
    """Kernels of torch on a device, as functions to time."""

    kinds: tuple[Kind, ...] = ("product", "batched", "convolution", "attention")

    def __init__(self, device: torch.device, elements: int) -> None:
        """Take the device and the number of elements that other ops read."""
        self.device, self.elements = device, elements
        made = {"mean": elements // ROW}
        self.ops = {
            name: elements * count + made.get(name, elements)
            for name, (_, count) in ELEMENTWISE.items()
        }

    def contraction(self, kernel: Kernel, dtype: str) -> Callable[[], torch.Tensor]:
        run: Op = _CONTRACT[kernel.kind]
        if kernel.kind == "convolution":
            run = partial(run, padding=1, groups=kernel.groups)
        return partial(run, *(self._filled(shape, dtype) for shape in kernel.shapes))

    def repeats(self, _kernel: Kernel) -> int:
        return 1

    def elementwise(self, op: str, dtype: str) -> Callable[[], torch.Tensor]:
        run, count = ELEMENTWISE[op]
        shape = (max(self.elements // ROW, 1), min(self.elements, ROW))
        return partial(run, *(self._filled(shape, dtype) for _ in range(count)))

    def cast(
        self, before: str, after: str, elements: int
    ) -> Callable[[], torch.Tensor]:
        held, wanted = self._filled((elements,), before), torch_dtype(after)
        return lambda: held.to(wanted)

    def wait(self, _result: torch.Tensor) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _filled(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        # Not random: ones are no special case to any kernel, and need no generator.
        return torch.ones(shape, dtype=torch_dtype(dtype), device=self.device)


_CONTRACT: Mapping[str, Op] = {
    "product": functional.linear,
    "batched": torch.bmm,
    "convolution": functional.conv2d,
    "attention": functional.scaled_dot_product_attention,
}
"""Contractions by kind."""
