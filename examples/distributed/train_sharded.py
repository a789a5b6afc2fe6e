"""Train over a mesh of JAX devices, in float16 with a loss scale.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 \
        python examples/distributed/train_sharded.py --model 2

Batches are split over the axis "data", matrices over the axis "model". For several
processes run it in each, with --processes N --process 0 to N-1. With --checkpoint FILE
a run goes on from where it was; --kill-at STEP shows it.
"""

import argparse
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from amprewrite.training import jax as training

SAVE_EVERY = 5
SPLIT = {"up": P(None, "model"), "bias": P("model"), "down": P("model", None)}
OPTIMIZER = optax.adam(1e-2)


def initial() -> dict[str, Any]:
    """Return the parameters that every run begins with, in float32."""
    up, down = jax.random.split(jax.random.key(0))
    return {
        "up": jax.random.normal(up, (16, 64)) / 4,
        "bias": jnp.zeros(64),
        "down": jax.random.normal(down, (64, 1)) / 8,
    }


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of a step, for all devices together."""
    x = np.random.default_rng(step).normal(size=(32, 16)).astype(np.float32)
    return x, np.tanh(x.sum(1, keepdims=True))


def loss(params: dict[str, Any], x: Any, y: Any) -> Any:
    """Return the mean square error over a batch, or a part of one."""
    hidden = jnp.tanh(x @ params["up"] + params["bias"])
    return jnp.mean((hidden @ params["down"] - y) ** 2)


def trainer(mesh: Any) -> Any:
    """Return the compiled step."""

    def mean(params: dict[str, Any], x: Any, y: Any) -> Any:
        return lax.pmean(loss(params, x, y), "data")

    def step(params: Any, state: Any, scale: Any, x: Any, y: Any) -> Any:
        def gradients(params: Any, scale: Any, x: Any, y: Any) -> Any:
            return training.value_and_grad(mean, "fp16", loss_scale=scale)(params, x, y)

        # Each part of a batch has its own program, in which the gradients of the mean
        # are added up as they leave it, in float32. "model" is left to the compiler.
        value, scale, finite, grads = jax.shard_map(
            gradients,
            mesh=mesh,
            axis_names={"data"},
            in_specs=(P(), P(), P("data"), P("data")),
            out_specs=P(),
        )(params, scale, x, y)
        params, state = training.optimizer_update(
            params, OPTIMIZER, state, grads, finite
        )
        return params, state, scale, value

    return jax.jit(step)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", type=int, default=1, help="parts of a matrix")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--address", default="localhost:12321")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--kill-at", type=int, help="here the last process dies")
    options = parser.parse_args()
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.address, options.processes, options.process)

    shape = jax.device_count() // options.model, options.model
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def put(array: Any, spec: P | None = None) -> Any:
        held = np.asarray(array)
        sharding = NamedSharding(mesh, spec or P())
        return jax.make_array_from_callback(held.shape, sharding, held.__getitem__)

    params, scale = initial(), training.DynamicLossScale(2.0**14, period=8)
    state, start = OPTIMIZER.init(params), 0
    if options.checkpoint and options.checkpoint.exists():
        saved = pickle.loads(options.checkpoint.read_bytes())  # noqa: S301  # our own
        params, state, scale, start = saved
    params = {name: put(held, SPLIT[name]) for name, held in params.items()}
    state, scale = jax.tree.map(put, (state, scale))  # moments move at the first step

    update = trainer(mesh)
    for step in range(start, options.steps):
        x, y = (put(part, P("data")) for part in batch(step))
        params, state, scale, value = update(params, state, scale, x, y)
        if jax.process_index() == 0:
            print(f"step {step}: loss {value:.6f}, scale {scale.loss_scale:g}")
        if options.checkpoint and (step + 1) % SAVE_EVERY == 0:
            whole = process_allgather((params, state, scale), tiled=True)
            if jax.process_index() == 0:
                new = options.checkpoint.with_suffix(".new")
                new.write_bytes(pickle.dumps((*whole, step + 1)))
                new.replace(options.checkpoint)  # whole, or not there
        if step == options.kill_at and jax.process_index() == options.processes - 1:
            value.block_until_ready()  # the others have come this far
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
