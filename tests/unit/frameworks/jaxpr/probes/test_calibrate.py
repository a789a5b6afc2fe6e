"""What is timed on a device of JAX, and what low contractions hand over."""

import os
from dataclasses import replace

import pytest

pytest.importorskip("jax")

import jax

from amprewrite.frameworks.jaxpr.probes import calibrate
from amprewrite.frameworks.jaxpr.probes.calibrate import (
    DEFAULTS,
    ELEMENTWISE,
    describe,
    device_of,
    kernels,
    measure,
)
from amprewrite.measure import timing as driver
from amprewrite.measure.timing import Scope

SMALL = Scope(((1, 8), (8, 16)), ((1, 4),), ((4, 2, 6),), (5,), 3, 128, 0.0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder for the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def device(kind):
    return replace(describe(), kind=kind)


@pytest.fixture(scope="module")
def found():
    return measure(SMALL)


def test_every_dtype_of_every_shape_is_timed(found):
    kinds = [(c.kind, c.batches, c.thin, c.macs) for c in found.contractions]
    assert kinds == [
        ("product", 1, 1, 64),
        ("product", 1, 8, 8 * 16 * 16),
        ("batched", 3, 1, 16),
        ("convolution", 1, 4, 4 * 18 * 36),
    ]
    dtypes = {"float32", "bfloat16", "float16"}
    assert all(set(c.seconds) == dtypes for c in found.contractions)
    assert {c.op: c.elements for c in found.elementwise} == {
        name: 128 * (count + 1) for name, (_, count) in ELEMENTWISE.items()
    }
    assert set(found.casts) == {"bfloat16", "float16"}
    assert found.device == describe()


def test_a_device_is_told_apart_by_its_processors(monkeypatch):
    device = describe()
    assert (device.framework, device.version) == ("jax", jax.__version__)
    assert device.kind == jax.default_backend()
    assert device == device_of(None, (), {})
    if device.kind == "cpu":
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda _: range(999), raising=False
        )
        assert describe().features.endswith("999 processors")


def test_an_accelerator_is_told_apart_by_the_precision_of_float32(monkeypatch):
    class Gpu:
        platform, device_kind = "gpu", "Big One"

    monkeypatch.setattr(calibrate.jax, "devices", lambda: [Gpu()])
    assert str(describe()).startswith("Big One (gpu, float32 precision default) by jax")


def test_without_measurements_there_are_defaults():
    found = {name: kernels(device(name), None).accumulators for name in DEFAULTS}
    assert found == DEFAULTS
    assert not kernels(device("a new machine"), None).accumulators


@pytest.mark.parametrize("sums", [True, False])
def test_what_was_measured_goes_before_the_default(found, sums):
    measured = replace(found, emits_accumulators=sums)
    assert kernels(describe(), measured).accumulators is sums


def test_sums_of_derivatives_are_full_over_several_devices(monkeypatch):
    monkeypatch.setattr(calibrate.jax, "device_count", lambda: 1)
    assert kernels(device("cpu"), None).derivative_accumulator == "operand"
    assert kernels(device("gpu"), None).derivative_accumulator == "operand"
    monkeypatch.setattr(calibrate.jax, "device_count", lambda: 8)
    assert kernels(device("cpu"), None).derivative_accumulator == "full"


def test_the_faster_way_is_chosen_and_timed(monkeypatch):
    """Pretend that one way is faster: by how often the sums are computed in float32."""
    seen = []

    def fake(runs, _wait, _seconds):
        seen.append({*runs})
        slow = {"low": 2.0 if faster == "full" else 0.5}
        return {name: slow.get(name, 1.0) for name in runs}

    monkeypatch.setattr(calibrate, "medians", fake)
    monkeypatch.setattr(driver, "medians", lambda runs, *_: dict.fromkeys(runs, 1.0))
    tiny = replace(SMALL, products=((1, 8),), batched=(), convolutions=())
    for faster in ("full", "low"):
        assert measure(tiny).emits_accumulators is (faster == "full")
    assert {"low", "full"} in seen


def test_programs_of_jax_are_compiled() -> None:
    assert calibrate.default_target() == "compiled"
