"""Steps of random JAX programs: each keeps the shape ``[4, 8]`` and the size."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

ROWS, WIDTH = 4, 8

Held = dict[str, Any]
"""Weights, masks, numbers and keys of a program, by name."""


def held(rng: Random, *, wide: bool) -> Held:
    """Return what a program holds beside its value, in several dtypes.

    Args:
        rng: Draws it.
        wide: Whether its floats have 64 bits, and those that are half as wide 32.
    """
    draw = np.random.default_rng(rng.randrange(2**32))
    dtype = jnp.float64 if wide else jnp.float32
    half = rng.choice([jnp.bfloat16, jnp.float16])

    def floats(*shape: int, scale: float = 1.0) -> Any:
        return jnp.asarray(draw.standard_normal(shape) * scale, dtype)

    key = jax.random.key(rng.randrange(100))
    return {
        "w": floats(WIDTH, WIDTH, scale=WIDTH**-0.5),
        "stack": floats(3, WIDTH, WIDTH, scale=WIDTH**-0.5),
        "kernel": floats(3, WIDTH, WIDTH, scale=(3 * WIDTH) ** -0.5),
        "bias": floats(WIDTH, scale=0.1),
        "scale": 1 + floats(WIDTH, scale=0.1),
        "half": floats(WIDTH).astype(jnp.float32 if wide else half),
        "rows": jnp.asarray(draw.integers(0, ROWS, 6)),
        "bytes": jnp.asarray(draw.integers(0, 100, (ROWS, WIDTH)), jnp.uint8),
        "mask": jnp.asarray(draw.random((ROWS, WIDTH)) < 0.6).at[:, 0].set(True),
        "n": jnp.int32(rng.randrange(6)),
        "key": key if rng.random() < 0.5 else jax.random.key_data(key),
    }


def _norm(p: Held, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3) * p["scale"]


def _attend(p: Held, x: Any) -> Any:
    q, k, v = (jnp.reshape(x @ w, (2, 2, WIDTH)) for w in p["stack"])
    mixing = jax.nn.softmax(jnp.einsum("bnd,bmd->bnm", q, k) * WIDTH**-0.5)
    return x + jnp.einsum("bnm,bmd->bnd", mixing, v).reshape(x.shape)


def _masked(p: Held, x: Any) -> Any:
    floor = jnp.finfo(x.dtype).min
    return x * jax.nn.softmax(jnp.where(p["mask"], x, floor))


def _conv(p: Held, x: Any) -> Any:
    made = lax.conv_general_dilated(
        x[None], p["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return made[0]


def _segments(p: Held, x: Any) -> Any:
    taken = x[p["rows"]]
    return x + jax.ops.segment_sum(taken, p["rows"] % ROWS, ROWS) * 0.2


def _key(p: Held) -> Any:
    key = p["key"]
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if typed else jax.random.wrap_key_data(key)


def _noise(p: Held, x: Any) -> Any:
    return x + 0.1 * jax.random.normal(_key(p), x.shape, x.dtype)


def _dropout(p: Held, x: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.fold_in(_key(p), p["n"]), 0.8, x.shape)
    return jnp.where(kept, x / 0.8, 0)


def _rotary(_: Held, x: Any) -> Any:
    angles = jnp.arange(ROWS)[:, None] * 10.0 ** -jnp.arange(WIDTH // 2)
    one, two = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def _low_island(p: Held, x: Any) -> Any:
    low = x.astype(p["half"].dtype) @ p["w"].astype(p["half"].dtype)
    return low.astype(x.dtype)


def _asks(p: Held, x: Any) -> Any:
    return jnp.dot(x, p["w"], precision=lax.Precision.HIGHEST)


def _integers(p: Held, x: Any) -> Any:
    counts = (p["bytes"].astype(jnp.int32) // 7 + p["n"]) % 5
    return x + counts.astype(x.dtype) * 0.1


def _one_hot(p: Held, x: Any) -> Any:
    rows = jax.nn.one_hot(p["rows"][:ROWS], ROWS, dtype=x.dtype)
    return rows @ x


def _put(p: Held, x: Any) -> Any:
    row = lax.dynamic_slice_in_dim(x, p["n"] % ROWS, 1)
    return x.at[0].set(jnp.tanh(row[0] @ p["w"]).astype(x.dtype))


PLAIN: Mapping[str, Callable[[Held, Any], Any]] = {
    "asks": _asks,
    "attend": _attend,
    "bias": lambda p, x: x @ p["w"] + p["bias"],
    "cast": lambda p, x: x.astype(p["half"].dtype).astype(x.dtype),
    "conv": _conv,
    "cumsum": lambda _, x: jnp.cumsum(x, -1) * 0.3,
    "dropout": _dropout,
    "gate": lambda p, x: x * jax.nn.sigmoid(x @ p["w"]),
    "gelu": lambda _, x: jax.nn.gelu(x),
    "guard": lambda p, x: (x @ p["w"]).astype(jnp.float32) * 0.5 + x,
    "half": lambda p, x: (x + p["half"]).astype(x.dtype),
    "integers": _integers,
    "island": _low_island,
    "logsumexp": lambda _, x: x - jax.nn.logsumexp(x, -1, keepdims=True) * 0.3,
    "masked": _masked,
    "matmul": lambda p, x: x @ p["w"],
    "maximum": lambda _, x: jnp.maximum(x, x.mean(0)),
    "named": lambda p, x: checkpoint_name(jnp.tanh(x @ p["w"]), "named"),
    "noise": _noise,
    "norm": _norm,
    "one_hot": _one_hot,
    "outer": lambda _, x: x + jnp.outer(x[:, 0], x[0]) * 0.2,
    "power": lambda _, x: x * 2.0 ** -jnp.abs(x),
    "put": _put,
    "rotary": _rotary,
    "segments": _segments,
    "silu": lambda _, x: jax.nn.silu(x),
    "sines": lambda _, x: x + 0.3 * jnp.sin(3 * x),
    "square": lambda _, x: x / jnp.sqrt(1e-3 + (x * x).mean(-1, keepdims=True)),
    "take": lambda p, x: x[p["rows"][:ROWS]],
    "tied": lambda p, x: jnp.tanh(x @ p["w"]) @ p["w"].T,
    "turn": lambda _, x: x.T.reshape(x.shape),
}
"""Each takes what a program holds and its value."""

COUNTED: Mapping[str, Callable[[Held], Any]] = {
    "bits": lambda p: jax.random.bits(_key(p), (3,)),
    "count": lambda p: p["mask"].sum(),
    "index": lambda p: jnp.argmax(p["bytes"], -1),
    "mask": lambda p: ~p["mask"],
    "places": lambda p: (p["rows"] * 3 + p["n"]) // 2,
    "sorted": lambda p: jnp.sort(p["bytes"], -1),
    "split": lambda p: jax.random.split(_key(p)),
}
"""What a program gives beside floats: nothing that a rounding may change."""
