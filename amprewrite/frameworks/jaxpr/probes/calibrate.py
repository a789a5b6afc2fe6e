"""Time contractions, other ops and casts of JAX, and the accumulators of contractions.

XLA for CPUs computes bfloat16 x bfloat16 -> float32 in about half of float32's time,
and -> bfloat16 in about all of it, because it converts the operands first (1024 x 1024
x 1024 on a Zen 5 core with avx512_bf16: 0.51 and 1.09). Rounding the accumulator
afterwards is therefore faster there. GPUs and TPUs round inside the kernel. The faster
way is measured, and low contractions are timed in it.
"""

import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

from jax import Array

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.measure.timing import (
    LOWS,
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

DEFAULTS = {"cpu": True, "gpu": False, "cuda": False, "rocm": False, "tpu": False}
"""Whether a backend's contractions return accumulators by default."""

CHAIN, SHORT = 8, 2**22
"""Number of chained contractions in a timed run, and the limit for chaining.

Each takes the result of the one before, so that the cost of a call, some microseconds,
is shared. Contractions of more multiply-adds than the second number are timed one by
one.
"""

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


def device_of(_model: object, _args: object, _kwargs: object) -> Device:
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
    scope = scope or scope_of(device.kind)
    bench = _Bench(scope)
    return calibrate(bench, device, scope, emits=bench.emits)


class _Bench:
    """Kernels of JAX on the default device, as functions to time."""

    kinds: tuple[Kind, ...] = ("product", "batched", "convolution")

    def __init__(self, scope: Scope) -> None:
        """Time the largest product with sums of both dtypes."""
        self.elements, low = scope.elements, LOWS[0]
        counts = {name: count for name, (_, count) in ELEMENTWISE.items()}
        self.ops = {n: self.elements * (count + 1) for n, count in counts.items()}
        rows, side = scope.products[-1]
        largest = product(rows, side)
        ways = {"low": low, "full": FULL}
        runs = {name: self._chained(largest, low, d) for name, d in ways.items()}
        found = medians(runs, self.wait, scope.seconds)
        self.emits = found["full"] < found["low"]

    def contraction(self, kernel: Kernel, dtype: str) -> Callable[[], Array]:
        return self._chained(kernel, dtype, FULL if self.emits else dtype)

    def repeats(self, kernel: Kernel) -> int:
        return 1 if prod(kernel.shapes[0]) * kernel.terms > SHORT else CHAIN

    def _chained(self, kernel: Kernel, dtype: str, sums: str) -> Callable[[], Array]:
        """Return a function that runs contractions, each of the result before.

        The second operand is scaled so that a sum of ones is 1, and numbers stay in
        range.

        Args:
            kernel: The contraction.
            dtype: Dtype of the operands.
            sums: Dtype of the sums.
        """
        count, run = self.repeats(kernel), _CONTRACT[kernel.kind]

        def chain(x: Array, w: Array) -> Array:
            for _ in range(count):
                x = run(kernel, x, w, sums).astype(x.dtype)
            return x

        x = jnp.ones(kernel.shapes[0], dtype)
        w = jnp.full(kernel.shapes[1], 1.0 / kernel.terms, dtype)
        return partial(jax.jit(chain), x, w)

    def elementwise(self, op: str, dtype: str) -> Callable[[], Array]:
        run, count = ELEMENTWISE[op]
        return partial(jax.jit(run), *(jnp.ones(self.elements, dtype),) * count)

    def cast(self, before: str, after: str, elements: int) -> Callable[[], Array]:
        convert = partial(lax.convert_element_type, new_dtype=after)
        return partial(jax.jit(convert), jnp.ones(elements, before))

    def wait(self, result: Array) -> object:
        return jax.block_until_ready(result)


def _dot(dims: Any, _: Kernel, x: Array, w: Array, sums: str) -> Array:
    return lax.dot_general(x, w, dims, preferred_element_type=jnp.dtype(sums))


def _convolution(kernel: Kernel, x: Array, w: Array, sums: str) -> Array:
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=(1, 1),
        padding="SAME",
        feature_group_count=kernel.groups,
        preferred_element_type=jnp.dtype(sums),
    )


_CONTRACT: Mapping[str, Callable[[Kernel, Array, Array, str], Array]] = {
    "product": partial(_dot, (((1,), (0,)), ((), ()))),
    "batched": partial(_dot, (((2,), (1,)), ((0,), (0,)))),
    "convolution": _convolution,
}
"""Contractions by kind: functions of two operands and the dtype of the sums."""
