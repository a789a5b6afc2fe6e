"""Plans for a device that is not there, of JAX programs."""

from dataclasses import replace
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.probes.calibrate import KINDS, named
from amprewrite.plan.hardware import Device, save_calibration
from tests.calibrations import calibration


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_prices_of_a_named_device_count() -> None:
    device = Device(framework="jax", version="0", kind="tpu", name="TPU v9")
    save_calibration(replace(calibration(), device=device))
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    for name in ("tpu", "TPU v9"):
        plan = amprewrite.inspect(lambda x: x @ x, args=(x,), device=name)
        assert "TPU v9 (tpu)" in plan.prices
    plan = amprewrite.inspect(lambda x: x @ x, args=(x,), device="cpu")
    assert "default" in plan.prices


def test_kinds_go_by_the_names_that_users_give_them() -> None:
    assert {name: named(name).kind for name in KINDS} == KINDS
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    with pytest.raises(UnsupportedError, match="unknown device 'xpu'; want cpu, gpu"):
        amprewrite.convert(lambda x: x @ x, args=(x,), device="xpu")
