"""A training step of a vision transformer in JAX: time, memory, the largest batch.

The shape is that of the mpx paper's experiment: images of 32x32x3, width 800, twelve
blocks. mpx itself is left out where it is not installed.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax

import amprewrite
from benchmarks import jax_zoo
from benchmarks.gpu.table import Table

WHAT = (
    "seconds of a step (forward, backward, Adam), XLA's own figures of temporary and "
    "argument bytes, float conversions in the compiled program; largest batch: of "
    "powers of two, whose step fits in the memory limit by XLA's figures"
)

PAPER = jax_zoo.Size(width=800, heads=8, layers=12, length=0, batch=256, side=32)
TINY = jax_zoo.Size(width=16, heads=2, layers=1, length=0, batch=2, side=16)

LIMIT = 16 * 2**30
"""Bytes of memory within which the largest batch is looked for."""

LARGEST = 2**13

ROUNDS = 10

REHEARSED = 3
"""Forms of a rehearsal: both kinds of float32, and one conversion."""

CONVERT = re.compile(r"= (f16|bf16|f32)\[[\d,]*\]\S* convert\(")
"""A float conversion in the text of a compiled program."""

Tree = Any
Loss = Callable[..., Any]


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``: the paper's batch, then the largest ones."""
    del device
    size = TINY if tiny else PAPER
    for name, form in list(FORMS.items())[: REHEARSED if tiny else None]:
        table.row(name, partial(_row, form, size), needs=0 if tiny else 60)
    most = 2 * size.batch if tiny else LARGEST
    for name, form in list(FORMS.items())[: 1 if tiny else None]:
        table.row(
            f"{name}, largest batch",
            partial(_largest, form, size, most),
            needs=0 if tiny else 120,
        )


def _float32(loss: Loss) -> Loss:
    """Contract in true float32: a GPU's default is TF32."""

    def full(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return loss(*args)

    return jax.value_and_grad(full)


def _cast(loss: Loss) -> Loss:
    """Cast parameters and images, as a user would do at once."""

    def low(params: Tree, images: Any, labels: Any) -> Any:
        def cast(x: Any) -> Any:
            return x.astype(jnp.bfloat16)

        return loss(jax.tree.map(cast, params), cast(images), labels)

    return jax.value_and_grad(low)


def _ours(policy: str, loss: Loss) -> Loss:
    return jax.value_and_grad(amprewrite.convert(loss, policy))


def _mpx(loss: Loss) -> Loss:
    if find_spec("mpx") is None:
        msg = "mpx is not installed"
        raise ModuleNotFoundError(msg)
    mpx: Any = import_module("mpx")
    cast: Any = mpx.cast_to_bfloat16

    def low(params: Tree, images: Any, labels: Any) -> Any:
        return loss(cast(params), cast(images), labels)

    return jax.value_and_grad(low)


FORMS: dict[str, Callable[[Loss], Loss]] = {
    "float32": _float32,
    "float32, tf32": jax.value_and_grad,
    "bf16": partial(_ours, "bf16"),
    "bf16-accumulate": partial(_ours, "bf16-accumulate"),
    "cast": _cast,
    "mpx": _mpx,
    "fp16": partial(_ours, "fp16"),
}
"""Gives loss and gradients in each form."""


def _step(
    form: Callable[[Loss], Loss], size: jax_zoo.Size
) -> tuple[Any, tuple[Any, ...]]:
    run, (params, images) = jax_zoo.build("vit", size)
    labels = jnp.arange(size.batch) % 10

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        scores = run(params, images).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    optimizer = optax.adam(1e-4)
    graded = form(loss)

    def step(params: Tree, state: Tree, images: Any, labels: Any) -> Any:
        value, gradients = graded(params, images, labels)
        updates, state = optimizer.update(gradients, state)
        return value, optax.apply_updates(params, updates), state

    args = params, optimizer.init(params), images, labels
    return jax.jit(step, donate_argnums=(0, 1)), args


def _row(form: Callable[[Loss], Loss], size: jax_zoo.Size) -> dict[str, Any]:
    step, (params, state, images, labels) = _step(form, size)
    start = time.perf_counter()
    compiled = step.lower(params, state, images, labels).compile()
    took = time.perf_counter() - start
    losses: list[float] = []
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        loss, params, state = compiled(params, state, images, labels)
        losses.append(float(jax.block_until_ready(loss)))
        times.append(time.perf_counter() - start)
    return {
        "batch": size.batch,
        "seconds": sorted(times)[len(times) // 2],
        "seconds to compile": took,
        "losses": losses,
        "converts": len(CONVERT.findall(compiled.as_text())),
        **_memory(compiled),
    }


def _memory(compiled: Any) -> dict[str, int]:
    found = compiled.memory_analysis()
    return {
        "temporary bytes": int(found.temp_size_in_bytes),
        "argument bytes": int(found.argument_size_in_bytes),
    }


def _largest(
    form: Callable[[Loss], Loss], size: jax_zoo.Size, most: int
) -> dict[str, Any]:
    """Double the batch while the step fits in :data:`LIMIT`; nothing is run."""
    fits: dict[str, Any] = {"limit": LIMIT, "batch": 0}
    batch = min(size.batch, most)
    while batch <= most:
        step, args = _step(form, size._replace(batch=batch))
        found = _memory(step.lower(*args).compile())
        if sum(found.values()) > LIMIT:
            fits["first that does not fit"] = {"batch": batch, **found}
            break
        fits.update(batch=batch, **found)
        batch *= 2
    return fits
