"""Training over meshes, in one process and in two, with a process that dies."""

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from amprewrite.training import jax as training
from tests.jax_compiler import QUICKLY
from tests.jax_programs import relative_error

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "distributed" / "train_sharded.py"
TIMEOUT = 240
"""Seconds for one run; it takes about ten on an idle machine."""
STEPS = 30
MESHES = [(8, 1), (4, 2)]

example = runpy.run_path(str(SCRIPT))


def placed(shape):
    """A mesh, and the arguments of a step on it."""
    count = shape[0] * shape[1]
    axes = ("data", "model")
    kinds = (AxisType.Auto,) * 2
    mesh = jax.make_mesh(shape, axes, kinds, devices=jax.devices()[:count])
    params = {
        name: jax.device_put(held, NamedSharding(mesh, example["SPLIT"][name]))
        for name, held in example["initial"]().items()
    }
    state = example["OPTIMIZER"].init(params)
    scale = training.DynamicLossScale(2.0**14, period=8)
    return mesh, *jax.device_put((params, state, scale), NamedSharding(mesh, P()))


def rows(mesh, step, *, spoilt=False):
    x, y = example["batch"](step)
    if spoilt:
        x[5, 0] = jnp.inf  # in the part of one device
    return jax.device_put((x, y), NamedSharding(mesh, P("data")))


def automatic(mesh):
    """A step whose devices exchange what the compiler wants them to."""
    del mesh

    def step(params, state, scale, x, y):
        gradients = training.value_and_grad(example["loss"], "fp16", loss_scale=scale)
        value, scale, finite, grads = gradients(params, x, y)
        optimizer = example["OPTIMIZER"]
        updated = training.optimizer_update(params, optimizer, state, grads, finite)
        return *updated, scale, value

    return jax.jit(step)


def alone():
    """Losses and scales of a step without any mesh."""
    params, step = example["initial"](), automatic(None)
    state = example["OPTIMIZER"].init(params)
    scale = training.DynamicLossScale(2.0**14, period=8)
    found = []
    for number in range(STEPS):
        given = map(jnp.asarray, example["batch"](number))
        params, state, scale, value = step(params, state, scale, *given)
        found.append((float(value), float(scale.loss_scale)))
    return found


def on_mesh(shape, kind):
    """Losses and scales of a step over a mesh."""
    mesh, params, state, scale = placed(shape)
    step = automatic(mesh) if kind == "automatic" else example["trainer"](mesh)
    found = []
    for number in range(STEPS):
        given = rows(mesh, number)
        params, state, scale, value = step(params, state, scale, *given)
        found.append((float(value), float(scale.loss_scale)))
    assert params["up"].dtype == jnp.float32
    return found


@pytest.mark.parametrize("kind", ["by hand", "automatic"])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_all_meshes_learn_as_one_device(shape, kind):
    found = on_mesh(shape, kind)
    expected = alone()
    losses, scales = zip(*found, strict=True)
    assert losses == pytest.approx([loss for loss, _ in expected], abs=1e-3)
    assert scales == tuple(scale for _, scale in expected)
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("kind", ["by hand", "automatic"])
def test_an_infinity_on_one_device_skips_the_step_of_all(kind):
    mesh, params, state, scale = placed((4, 2))
    step = automatic(mesh) if kind == "automatic" else example["trainer"](mesh)
    params, state, scale, _ = step(params, state, scale, *rows(mesh, 0))
    given = rows(mesh, 1, spoilt=True)
    new_params, new_state, new_scale, _ = step(params, state, scale, *given)
    assert float(new_scale.loss_scale) == float(scale.loss_scale) / 2
    before, after = (
        jax.tree.leaves(x) for x in ((params, state), (new_params, new_state))
    )
    for one, other in zip(before, after, strict=True):
        for here, there in zip(
            one.addressable_shards, other.addressable_shards, strict=True
        ):
            assert (jnp.asarray(here.data) == jnp.asarray(there.data)).all()


def reduced(step, *args):
    """The dtypes and ranks of what devices add up: f32[8,4] is ``("f32", 2)``."""
    text = step.lower(*args).compile().as_text()
    found = re.findall(
        r"= (\(.*?\)|\S+) (?:all-reduce|reduce-scatter)(?:-start)?\(", text
    )
    parts = re.findall(r"(\w+)\[([\d,]*)\]", " ".join(found))
    return {(dtype, len(shape.split(",")) if shape else 0) for dtype, shape in parts}


@pytest.mark.parametrize("shape", [(8, 1), (4, 2)], ids=str)
def test_gradients_of_a_float16_program_are_reduced_in_float32(shape):
    """XLA for CPUs adds float16 up in float16 if asked to, but bfloat16 never."""
    mesh, *args = placed(shape)
    found = reduced(example["trainer"](mesh), *args, *rows(mesh, 0))
    assert ("f32", 2) in found
    assert not {dtype for dtype, rank in found if rank} - {"f32"}


def test_gradients_are_reduced_in_full_where_casts_by_hand_are_not():
    """The compiler adds up what devices made in the dtype of the contraction."""

    def half(params, x, y):
        def loss(params):
            low = {name: held.astype(jnp.float16) for name, held in params.items()}
            hidden = jnp.tanh(x.astype(jnp.float16) @ low["up"] + low["bias"])
            return jnp.mean(((hidden @ low["down"]).astype(jnp.float32) - y) ** 2)

        return jax.grad(loss)(params)

    mesh, params, state, scale = placed((8, 1))
    x, y = rows(mesh, 0)
    ours = reduced(automatic(mesh), params, state, scale, x, y)
    assert ("f32", 2) in ours
    assert ("f16", 2) not in ours
    assert ("f16", 2) in reduced(jax.jit(half), params, x, y)


def accumulated(kind):
    """Gradients of four batches on eight devices, with a mesh in hand."""
    varying, check_vma = kind != "loss", kind != "unchecked"
    axis = "data" if varying else None

    def loss(params, x, y):
        found = example["loss"](params, x, y)
        return found if varying else lax.pmean(found, "data")

    def run(params, scale, x, y):
        if varying and check_vma:
            params = lax.pcast(params, "data", to="varying")
        given = training.value_and_grad(loss, "fp16", loss_scale=scale, axis_name=axis)
        value, scale, finite, grads = training.accumulate(
            lambda batch: given(params, *batch),
            (x, y),
            loss_scale=scale,
            axis_name=axis,
        )
        if varying:
            value, grads = lax.pmean((value, grads), "data")
        return value, scale, finite, grads

    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    specs = (P(), P(), P(None, "data"), P(None, "data"))
    return jax.jit(
        jax.shard_map(
            run, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma
        )
    )


@pytest.mark.parametrize("kind", ["loss", "gradients", "unchecked"])
def test_batches_add_up_over_devices(kind):
    params, scale = example["initial"](), training.DynamicLossScale(2.0**10)
    x, y = (
        jnp.stack(part) for part in zip(*map(example["batch"], range(4)), strict=True)
    )
    step = accumulated(kind)
    _, after, finite, grads = step(params, scale, x, y)
    assert (bool(finite), float(after.loss_scale)) == (True, 2.0**10)
    whole = (part.reshape(-1, part.shape[-1]) for part in (x, y))
    assert relative_error(grads, jax.grad(example["loss"])(params, *whole)) < 2e-3
    spoilt = x.at[2, 5, 0].set(jnp.inf)  # in one batch, on one device
    _, after, finite, _ = step(params, scale, spoilt, y)
    assert (bool(finite), float(after.loss_scale)) == (False, 2.0**9)


def launch(*args, processes):
    """Start the example in some processes of two devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    env = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {QUICKLY}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
        ),
    }
    shared = ["--address", address, "--processes", str(processes), *args]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--process", str(number), *shared],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(processes)
    ]


def finish(running):
    """What the first process printed, by step, when all have ended well."""
    try:
        texts = [process.communicate(timeout=TIMEOUT)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert not [p.returncode for p in running if p.returncode], texts
    return curve(texts[0])


def curve(text):
    lines = re.findall(r"step (\d+): loss (\S+), scale (\S+)", text)
    return {int(step): (float(loss), float(scale)) for step, loss, scale in lines}


@pytest.mark.slow
def test_two_processes_learn_as_one_though_they_are_killed(tmp_path):
    expected = on_mesh((2, 2), "by hand")
    save = ("--model", "2", "--checkpoint", str(tmp_path / "run"))
    first, last = launch(*save, "--kill-at", "17", processes=2)
    last.communicate(timeout=TIMEOUT)
    first.kill()  # it waits for the other
    killed = curve(first.communicate(timeout=TIMEOUT)[0])
    assert last.returncode == -signal.SIGKILL
    assert 16 <= max(killed) < STEPS - 1
    again = finish(launch(*save, processes=2))
    assert sorted(again) == list(range(15, STEPS))
    losses, scales = zip(*{**killed, **again}.values(), strict=True)
    assert losses == pytest.approx([loss for loss, _ in expected], abs=1e-5)
    assert scales == tuple(scale for _, scale in expected)
    for step in killed.keys() & again.keys():
        assert killed[step] == again[step]
