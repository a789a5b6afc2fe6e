"""The default device of JAX, with a small function."""

from typing import Any

from amprewrite.frameworks.base import Sample
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.frameworks.jaxpr.probes.calibrate import describe
from amprewrite.measure.timing import bfloat16_instructions

WIDTH, ROWS = 64, 32
"""Sizes of the weights and of the argument."""

FIRST_WITH_BFLOAT16 = 8
"""Major compute capability of the first NVIDIA GPUs with bfloat16, Ampere."""


def samples() -> tuple[Sample, ...]:
    """Return a function and arguments for the default device."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (WIDTH, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH)
    pairs = zip(keys, shapes, strict=True)
    up, down, x = (jax.random.normal(key, shape) for key, shape in pairs)
    weights = {"up": up / WIDTH**0.5, "down": down / WIDTH**0.5}
    supported, why = _bfloat16(jax.devices()[0])
    return (Sample(describe(), supported, why, _network, (weights, x)),)


def _network(weights: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(x @ weights["up"])
    return jax.nn.softmax(hidden @ weights["down"])


def _bfloat16(device: Any) -> tuple[bool | None, str]:
    """Return whether ``device`` contracts bfloat16, and why; None if unknown."""
    if device.platform == "cpu":
        return bfloat16_instructions()
    if device.platform == "tpu":
        return True, device.device_kind
    capability = str(getattr(device, "compute_capability", ""))
    major = capability.partition(".")[0]
    if not major.isdigit():
        return None, f"JAX does not say it of {device.device_kind}"
    return int(major) >= FIRST_WITH_BFLOAT16, f"compute capability {capability}"
