"""Training steps in JAX against float32, mpx, jmp and casts written by hand.

For a small transformer: the bytes that the forward pass leaves for the backward pass,
the error of gradients against float64, the time of a step; and whether float16 trains
where gradients are small. mpx and jmp are left out where they are not installed. Every
step of one model is timed interleaved in one process; the figures are ratios of
medians, by the processor time of all threads of the process.

    python -m benchmarks.training_jax --out benchmarks/results/training_jax.json
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from amprewrite.training.jax import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    optimizer_update,
    value_and_grad,
)
from benchmarks import jax_zoo
from benchmarks.jax_accuracy import saved_bytes

SIZES = {
    "tiny": jax_zoo.TINY,
    "small": jax_zoo.Size(width=128, heads=4, layers=2, length=64, batch=4),
}
"""What is measured."""

OPTIMIZER = optax.adam(1e-3)

Tree = Any
"""Any pytree."""

Loss = Callable[[Tree, Any], Any]
"""A loss of parameters and tokens."""

Gradients = Callable[[Any, Tree, Any], Any]
"""Gives ``(loss_scale, grads_finite, grads)`` of a loss scale, parameters, tokens."""


def transformer(size: jax_zoo.Size) -> tuple[Loss, Tree, Any]:
    """Return the loss of a language model, its parameters and its tokens."""
    run, (params, ids) = jax_zoo.build("transformer", size)

    def loss(params: Tree, ids: Any) -> Any:
        scores = run(params, ids)[:, :-1].astype(jnp.promote_types("float32", _wide()))
        chosen = jax.nn.log_softmax(scores)
        return -jnp.take_along_axis(chosen, ids[:, 1:, None], 2).mean()

    return loss, params, ids


def _wide() -> Any:
    return jnp.float64 if jax.config.values["jax_enable_x64"] else jnp.float32


def cast(tree: Tree, dtype: Any) -> Tree:
    """Return a tree with its floats in ``dtype``."""

    def one(leaf: Any) -> Any:
        floats = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if floats else leaf

    return jax.tree.map(one, tree)


def by_hand(loss: Loss) -> Loss:
    """Return the loss as somebody writes it who knows what to keep in float32."""
    low = jnp.bfloat16

    def linear(p: Any, x: Any) -> Any:
        return x.astype(low) @ p["w"].astype(low) + p["b"].astype(low)

    def layer_norm(p: Any, x: Any, full: Any = jax_zoo.layer_norm) -> Any:
        return full(p, x.astype(jnp.float32)).astype(low)

    def attention(p: Any, x: Any, heads: int, mask: Any = None) -> Any:
        batch, length, width = x.shape
        qkv = linear(p["qkv"], x).reshape(batch, length, 3, heads, width // heads)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32)
        scores = scores * (width // heads) ** -0.5
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores).astype(low)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3)
        return linear(p["out"], mixed.reshape(batch, length, width))

    def run(params: Tree, ids: Any) -> Any:
        head = {**params, "head": params["head"].astype(low)}
        with (
            mock.patch.object(jax_zoo, "linear", linear),
            mock.patch.object(jax_zoo, "layer_norm", layer_norm),
            mock.patch.object(jax_zoo, "attention", attention),
        ):
            return loss(head, ids)

    return run


def everything(loss: Loss, low: Any = jnp.bfloat16) -> Loss:
    """Return the loss with all parameters in 16 bits, as mpx and jmp have it."""
    return lambda params, ids: loss(cast(params, low), ids)


def gradients(loss: Loss) -> dict[str, tuple[Gradients, Any]]:
    """Return what makes gradients, by variant, and the loss scale it begins with."""

    def ours(policy: str | None) -> Gradients:
        def run(scale: Any, params: Tree, ids: Any) -> Any:
            return value_and_grad(loss, policy, loss_scale=scale)(params, ids)[1:]

        return run

    def plain(function: Loss) -> Gradients:
        def run(scale: Any, params: Tree, ids: Any) -> Any:
            return scale, jnp.bool_(True), jax.grad(function)(params, ids)

        return run

    none, dynamic = NoOpLossScale(), DynamicLossScale(2.0**15)
    found: dict[str, tuple[Gradients, Any]] = {
        "float32": (plain(loss), none),
        "float32 with a loss scale": (ours(None), dynamic),
        "amprewrite bf16": (ours("bf16"), none),
        "amprewrite fp16": (ours("fp16"), dynamic),
        "by hand bf16": (plain(by_hand(loss)), none),
    }
    if find_spec("mpx"):
        mpx: Any = import_module("mpx")
        mpx.set_half_precision_datatype(jnp.bfloat16)

        def with_mpx(scale: Any, params: Tree, ids: Any) -> Any:
            return mpx.filter_grad(loss, scale)(params, ids)

        scale = mpx.DynamicLossScaling(jnp.float32(2.0**15), jnp.ones(()))
        found["mpx bf16"] = with_mpx, scale
    if find_spec("jmp"):
        jmp: Any = import_module("jmp")
        policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")

        def with_jmp(params: Tree, ids: Any) -> Any:
            return policy.cast_to_output(loss(policy.cast_to_compute(params), ids))

        found["jmp bf16"] = plain(with_jmp), none
    return found


def error(found: Tree, wanted: Tree) -> float:
    """Return the relative L2 error over all gradients."""
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    ]
    off = sum(float(np.sum((a - b) ** 2)) for a, b in pairs)
    return (off / sum(float(np.sum(b**2)) for _, b in pairs)) ** 0.5


def exact(loss: Loss, params: Tree, ids: Any) -> Tree:
    """Return the gradients in float64, as NumPy arrays."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        grads = jax.jit(jax.grad(loss))(wide, jnp.asarray(np.asarray(ids)))
        return jax.tree.map(np.asarray, grads)


def memory(loss: Loss, params: Tree, ids: Any) -> dict[str, float]:
    """Return saved bytes over those of float32, by variant."""
    from amprewrite import convert  # noqa: PLC0415  # beside what it is for

    whole = saved_bytes(loss, (params, ids))[0]
    functions = {
        "amprewrite bf16": convert(loss, "bf16"),
        "amprewrite fp16": convert(loss, "fp16"),
        "by hand bf16": by_hand(loss),
        "everything bf16 (mpx, jmp)": everything(loss),
    }
    found = {k: saved_bytes(f, (params, ids))[0] / whole for k, f in functions.items()}
    return {"bytes of float32": whole, **found}


def steps(found: dict[str, tuple[Gradients, Any]]) -> dict[str, Any]:
    """Return one compiled step of training, by variant."""

    def step(run: Gradients, scale: Any, params: Tree, held: Tree, ids: Any) -> Any:
        scale, finite, grads = run(scale, params, ids)
        return scale, *optimizer_update(params, OPTIMIZER, held, grads, finite)

    return {
        name: (jax.jit(step, static_argnums=0), run, scale)
        for name, (run, scale) in found.items()
    }


def times(found: dict[str, Any], params: Tree, ids: Any, rounds: int) -> dict[str, Any]:
    """Return the median seconds of a step, by variant; rounds are interleaved."""
    held = OPTIMIZER.init(params)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 1):
        for name, (step, run, scale) in found.items():
            start = time.process_time()
            jax.block_until_ready(step(run, scale, params, held, ids))
            if number:  # the first round compiles
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def small_gradients(count: int = 300, size: float = 2.0**-12) -> dict[str, float]:
    """Return the loss that SGD reaches on a loss divided by 4096 squared.

    Activations, and so gradients within the model, are those of a loss over 4096 with
    outputs over 4096; the update is undone by the learning rate.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    x, y = jax.random.normal(keys[0], (64, 8)), jax.random.normal(keys[1], (64, 1))
    start = {
        "w": jax.random.normal(keys[2], (8, 64)) / 8**0.5,
        "v": jax.random.normal(keys[3], (64, 1)) / 8,
    }

    def loss(params: Tree) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - jnp.tanh(y)) ** 2)

    def trained(policy: str | None, scale: Any) -> float:
        def step(carry: Any, _: Any) -> Any:
            params, scale = carry
            run = value_and_grad(lambda p: loss(p) * size**2, policy, loss_scale=scale)
            _, scale, finite, grads = run(params)
            grads = jax.tree.map(lambda g: g / size**2, grads)
            params, _ = optimizer_update(params, sgd, sgd.init(params), grads, finite)
            return (params, scale), None

        (params, _), _ = jax.jit(
            lambda s: jax.lax.scan(step, (start, s), length=count)
        )(scale)
        return float(loss(params))

    sgd = optax.sgd(0.1)
    return {
        "at the start": float(loss(start)),
        "float32": trained(None, StaticLossScale(1.0)),
        "fp16": trained("fp16", StaticLossScale(1.0)),
        "fp16, dynamic": trained("fp16", DynamicLossScale(2.0**15, period=20)),
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in options.sizes:
        loss, params, ids = transformer(SIZES[name])
        wanted = exact(loss, params, ids)
        made = gradients(loss)
        medians = times(steps(made), params, ids, options.rounds)
        rows[name] = {
            "size": SIZES[name]._asdict(),
            "saved bytes / float32": memory(loss, params, ids),
            "gradient error against float64": {
                key: error(jax.jit(run)(scale, params, ids)[2], wanted)
                for key, (run, scale) in made.items()
            },
            "time of a step / float32": {
                key: value / medians["float32"] for key, value in medians.items()
            },
        }
        print(name, json.dumps(rows[name], indent=1), flush=True)
    peers = [p for p in ("jmp", "mixed-precision-for-JAX") if _installed(p)]
    found = {
        "what": "a transformer language model and Adam; one compiled step",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "machine": platform.machine(),
        "processor instructions for 16 bits": processor_instructions(),
        "peers": {name: version(name) for name in peers},
        "rounds": options.rounds,
        "rows": rows,
        "loss where gradients are small": small_gradients(),
    }
    print(json.dumps(found["loss where gradients are small"]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _installed(name: str) -> bool:
    return find_spec({"mixed-precision-for-JAX": "mpx"}.get(name, name)) is not None


def processor_instructions() -> str:
    """Return which 16-bit arithmetic the processor has; the rest is emulated."""
    about = Path("/proc/cpuinfo")
    text = about.read_text("utf-8") if about.exists() else ""
    known = ("avx512_bf16", "avx512_fp16", "amx_bf16")
    return ", ".join(name for name in known if name in text) or "none: emulated"


if __name__ == "__main__":
    main()
