"""Time contractions, other ops and casts of torch on a device."""

import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.nn import functional

from amprewrite.measure.timing import LOWS, Scope, medians, processor, scope_of
from amprewrite.plan.hardware.calibration import (
    FULL,
    Calibration,
    Casts,
    Contraction,
    Device,
    Elementwise,
    Kind,
)
from amprewrite.plan.hardware.devices import named_device
from amprewrite.plan.hardware.kernels import Kernels

HEADS, WIDTH = 4, 64
"""Heads of the timed attention, and the width of each."""

FEW = 8
"""Elements of a tensor with a cast that takes only the time of its launch."""

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
    model: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None
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
    with torch.no_grad():
        return _Bench(device, scope or scope_of(device.type)).measure()


class _Bench:
    def __init__(self, device: torch.device, scope: Scope) -> None:
        self.device, self.scope = device, scope
        self.dtypes = (FULL, *LOWS)

    def measure(self) -> Calibration:
        self._medians(functional.linear, ((WIDTH, WIDTH),) * 2)  # the clock speeds up
        return Calibration(
            device=describe(self.device),
            contractions=tuple(self._contractions()),
            elementwise=tuple(map(self._elementwise, ELEMENTWISE)),
            casts={low: self._casts(low) for low in LOWS},
        )

    def _contractions(self) -> Iterator[Contraction]:
        scope, count = self.scope, self.scope.batches
        for rows, side in scope.products:
            shapes = ((rows, side), (side, side))
            yield self._timed("product", functional.linear, shapes, (rows, side**2))
        for rows, side in scope.batched:
            shapes = ((count, rows, side), (count, side, side))
            yield self._timed("batched", torch.bmm, shapes, (rows, side**2), count)
        for channels, groups, image in scope.convolutions:
            inside = channels // groups
            shapes = ((1, channels, image, image), (channels, inside, 3, 3))
            run = partial(functional.conv2d, padding=1, groups=groups)
            extents = sorted((channels, inside * 9, image**2))
            sizes = (extents[0], extents[1] * extents[2])
            yield self._timed("convolution", run, shapes, sizes)
        for length in scope.attention:
            shape = (1, HEADS, length, WIDTH)
            run = functional.scaled_dot_product_attention
            sizes = (min(length, WIDTH), 2 * length * max(length, WIDTH))
            yield self._timed("attention", run, (shape,) * 3, sizes, HEADS)

    def _timed(
        self,
        kind: Kind,
        run: Op,
        shapes: tuple[tuple[int, ...], ...],
        sizes: tuple[int, int],
        batches: int = 1,
    ) -> Contraction:
        """Time a contraction.

        Args:
            kind: Kind of kernel.
            run: The contraction.
            shapes: Shapes of its operands.
            sizes: The smallest extent of one product, and the product of the others.
            batches: Number of products.
        """
        thin, rest = sizes
        seconds = self._medians(run, shapes)
        return Contraction(
            kind=kind, thin=thin, macs=thin * rest, batches=batches, seconds=seconds
        )

    def _medians(
        self, run: Op, shapes: tuple[tuple[int, ...], ...]
    ) -> dict[str, float]:
        runs = {
            dtype: partial(run, *(self._filled(shape, dtype) for shape in shapes))
            for dtype in self.dtypes
        }
        return medians(runs, self._wait, self.scope.seconds)

    def _filled(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        # Not random: ones are no special case to any kernel, and need no generator.
        kind: torch.dtype = getattr(torch, dtype)
        return torch.ones(shape, dtype=kind, device=self.device)

    def _elementwise(self, name: str) -> Elementwise:
        run, count = ELEMENTWISE[name]
        elements = self.scope.elements
        shapes = ((max(elements // ROW, 1), min(elements, ROW)),) * count
        touched = elements * count + (elements // ROW if name == "mean" else elements)
        return Elementwise(
            op=name, elements=touched, seconds=self._medians(run, shapes)
        )

    def _casts(self, low: str) -> Casts:
        kind: torch.dtype = getattr(torch, low)
        full = self._filled((self.scope.elements,), FULL)
        few, lower = self._filled((FEW,), FULL), full.to(kind)
        runs = {
            "down": lambda: full.to(kind),
            "up": lambda: lower.to(torch.float32),
            "launch": lambda: few.to(kind),
        }
        found = medians(runs, self._wait, self.scope.seconds)
        return Casts(elements=self.scope.elements, **found)

    def _wait(self, _: object) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
