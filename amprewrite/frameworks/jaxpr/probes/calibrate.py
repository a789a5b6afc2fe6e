"""Time contractions, other ops and casts of JAX, and the accumulators of contractions.

XLA for CPUs computes bfloat16 x bfloat16 -> float32 in about half of float32's time,
and -> bfloat16 in about all of it, because it converts the operands first (1024 x 1024
x 1024 on a Zen 5 core with avx512_bf16: 0.51 and 1.09). Rounding the accumulator
afterwards is therefore faster there. GPUs and TPUs round inside the kernel. The faster
way is measured, and low contractions are timed in it.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.measure.timing import LOWS, Scope, medians, processor, scope_of
from amprewrite.plan.hardware.calibration import (
    FULL,
    Calibration,
    Casts,
    Contraction,
    Device,
    Elementwise,
)
from amprewrite.plan.hardware.devices import named_device
from amprewrite.plan.hardware.kernels import Kernels

DEFAULTS = {"cpu": True, "gpu": False, "cuda": False, "rocm": False, "tpu": False}
"""Whether a backend's contractions return accumulators by default."""

CHAIN, SHORT = 8, 2**22
"""Number of chained contractions in a timed run, and the limit for chaining.

Each takes the result of the one before, so that the cost of a call, some microseconds,
is shared. Contractions of more multiply-adds than the second number are timed one by
one.
"""

FEW = 8
"""Elements of an array with a cast that takes only the time of its launch."""

PLAIN = (((1,), (0,)), ((), ()))
BATCHED = (((2,), (1,)), ((0,), (0,)))
"""Dimension numbers of one product, and of a batch."""

ELEMENTWISE: Mapping[str, tuple[Callable[..., Any], int]] = {
    "add": (jnp.add, 2),
    "exp": (jnp.exp, 1),
    "logistic": (jax.nn.sigmoid, 1),
    "max": (jnp.maximum, 2),
    "mul": (jnp.multiply, 2),
    "tanh": (jnp.tanh, 1),
}
"""Ops by canonical name, with their numbers of operands."""


def default_target() -> str:
    """Return ``compiled``: programs of JAX run under ``jax.jit``."""
    return "compiled"


def kernels(device: Device, found: Calibration | None) -> Kernels:
    """Return the accumulator dtypes of low contractions on ``device``.

    Sums of derivatives are returned in full if they may run over several devices, or if
    full ones are needed, as for gradients of weights. Without bfloat16 instructions
    this costs time on a CPU: a step took 1.04 (a transformer) to 1.2 (a recurrent
    network) times that with rounded gradients of weights.

    Args:
        device: The device.
        found: The calibration of it; None without one.
    """
    measured = found.emits_accumulators if found else None
    default = DEFAULTS.get(device.kind, False)
    emits = default if measured is None else measured
    return Kernels(emits, "full" if jax.device_count() > 1 else "operand")


def describe() -> Device:
    """Return the default device with the conditions that its timings depend on.

    The speed of float32 on a GPU depends on whether it may use TF32.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        name, instructions = processor()
        features = f"{instructions}, {_processors()} processors".lstrip(", ")
        name = name or platform.machine()
    else:
        precision = jax.config.jax_default_matmul_precision or "default"
        name, features = device.device_kind, f"float32 precision {precision}"
    return Device(
        framework="jax",
        version=str(jax.__version__),
        kind=device.platform,
        name=name,
        features=features,
    )


def _processors() -> int:
    """Return the number of processors of this process, as XLA counts its threads."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def device_of(_model: Any, _args: Any, _kwargs: Any) -> Device:
    """Return the device that JAX runs on: the default one for every model."""
    return describe()


KINDS = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}
"""Kinds of devices by the names that users give them."""


def named(name: str) -> Device:
    """Return the device called ``name``; see :func:`named_device`.

    Raises:
        UnsupportedError: There is no device of that name.
    """

    def present(kind: str) -> Device | None:
        here = describe()
        return here if here.kind == kind else None

    return named_device(name, "jax", str(jax.__version__), KINDS, present)


def measure(scope: Scope | None = None) -> Calibration:
    """Time contractions, other ops and casts on the default device.

    Args:
        scope: Shapes to time; None for those of the kind of device.
    """
    device = describe()
    return _Bench(device, scope or scope_of(device.kind)).measure()


class _Bench:
    def __init__(self, device: Device, scope: Scope) -> None:
        self.device, self.scope = device, scope
        self.sums = self._emits_accumulators()

    def measure(self) -> Calibration:
        return Calibration(
            device=self.device,
            contractions=tuple(self._contractions()),
            elementwise=tuple(map(self._elementwise, ELEMENTWISE)),
            casts={low: self._casts(low) for low in LOWS},
            emits_accumulators=self.sums,
        )

    def _emits_accumulators(self) -> bool:
        """Return whether the largest product is faster with full-precision sums."""
        rows, side = self.scope.products[-1]
        low, shapes = LOWS[0], ((rows, side), (side, side))
        ways = {"low": (low, low), "full": (low, FULL)}
        found = self._chained(partial(_dot, PLAIN), shapes, side, ways)
        return found["full"] < found["low"]

    def _contractions(self) -> Iterator[Contraction]:
        scope, count = self.scope, self.scope.batches
        for rows, side in scope.products:
            shapes = ((rows, side), (side, side))
            seconds = self._chained(partial(_dot, PLAIN), shapes, side)
            macs = rows * side**2
            yield Contraction(kind="product", thin=rows, macs=macs, seconds=seconds)
        for rows, side in scope.batched:
            shapes = ((count, rows, side), (count, side, side))
            yield Contraction(
                kind="batched",
                thin=rows,
                macs=rows * side**2,
                batches=count,
                seconds=self._chained(partial(_dot, BATCHED), shapes, side),
            )
        for channels, groups, image in scope.convolutions:
            inside = channels // groups
            shapes = ((1, channels, image, image), (channels, inside, 3, 3))
            run = partial(_convolution, groups)
            yield Contraction(
                kind="convolution",
                thin=min(channels, inside * 9, image**2),
                macs=channels * inside * 9 * image**2,
                seconds=self._chained(run, shapes, inside * 9),
            )

    def _chained(
        self,
        run: Callable[..., Any],
        shapes: tuple[tuple[int, ...], ...],
        terms: int,
        ways: Mapping[str, tuple[str, str]] | None = None,
    ) -> dict[str, float]:
        """Return the seconds of one contraction, by name of the variant.

        Args:
            run: Contracts two operands into sums of a dtype, shaped as the first.
            shapes: Shapes of the operands.
            terms: Terms of each sum: the second operand is scaled so that a sum of ones
                is 1, and numbers stay in range.
            ways: Dtypes of the operands and of the sums, by name; None for every dtype
                as in a converted program.
        """
        if ways is None:
            lows = {low: (low, FULL if self.sums else low) for low in LOWS}
            ways = {FULL: (FULL, FULL), **lows}
        count = 1 if prod(shapes[0]) * terms > SHORT else CHAIN

        def chain(sums: str, x: Any, w: Any) -> Any:
            for _ in range(count):
                x = run(x, w, sums).astype(x.dtype)
            return x

        runs: dict[str, Callable[[], Any]] = {}
        for name, (dtype, sums) in ways.items():
            x = jnp.ones(shapes[0], dtype)
            w = jnp.full(shapes[1], 1.0 / terms, dtype)
            runs[name] = partial(jax.jit(partial(chain, sums)), x, w)
        found = medians(runs, jax.block_until_ready, self.scope.seconds)
        return {name: seconds / count for name, seconds in found.items()}

    def _elementwise(self, name: str) -> Elementwise:
        run, count = ELEMENTWISE[name]
        elements, compiled = self.scope.elements, jax.jit(run)
        runs = {
            dtype: partial(compiled, *(jnp.ones(elements, dtype),) * count)
            for dtype in (FULL, *LOWS)
        }
        seconds = medians(runs, jax.block_until_ready, self.scope.seconds)
        return Elementwise(op=name, elements=elements * (count + 1), seconds=seconds)

    def _casts(self, low: str) -> Casts:
        elements = self.scope.elements
        full = jnp.ones(elements, FULL)
        down, up = (
            jax.jit(partial(lax.convert_element_type, new_dtype=d)) for d in (low, FULL)
        )
        runs = {
            "down": partial(down, full),
            "up": partial(up, full.astype(low)),
            "launch": partial(down, jnp.ones(FEW, FULL)),
        }
        found = medians(runs, jax.block_until_ready, self.scope.seconds)
        return Casts(elements=elements, **found)


def _dot(dims: Any, x: Any, w: Any, sums: str) -> Any:
    return lax.dot_general(x, w, dims, preferred_element_type=jnp.dtype(sums))


def _convolution(groups: int, x: Any, w: Any, sums: str) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=(1, 1),
        padding="SAME",
        feature_group_count=groups,
        preferred_element_type=jnp.dtype(sums),
    )
