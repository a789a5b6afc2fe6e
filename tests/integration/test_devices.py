"""Plans for a device that is not there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.probes.calibrate import KINDS, describe, named
from amprewrite.plan.hardware import Device, save_calibration
from tests.calibrations import calibration
from tests.torch_programs import Program


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def recurrent(device: str = "cpu") -> Any:
    cell = nn.GRUCell(64, 64, device=device)
    return Program(lambda m, x: m.cell(x), cell=cell).eval()


def ops(plan: Any) -> set[str]:
    return {decision.canonical for decision in plan.decisions}


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_rewrites_for_cpus_are_left_out_of_a_plan_for_cuda(where: str) -> None:
    model, x = recurrent(where), torch.ones(2, 64, device=where)
    ours = amprewrite.inspect(model, args=(x,))
    theirs = amprewrite.inspect(model, args=(x,), device="cuda")
    assert "linear" in ops(ours)
    assert "gru_cell" in ops(theirs) - ops(ours)
    assert "linear" not in ops(theirs)
    converted = amprewrite.convert(model, args=(x,), device="cuda")
    assert converted.plan == theirs


def test_the_warning_of_float16_is_about_the_device_that_is_planned_for() -> None:
    model, x = nn.Linear(64, 64, device="meta").eval(), torch.ones(2, 64, device="meta")
    said = amprewrite.inspect(model, "fp16", args=(x,), device="cpu").warnings
    assert any("float16 on a CPU" in line for line in said)
    silent = amprewrite.inspect(model, "fp16", args=(x,), device="cuda").warnings
    assert not any("CPU" in line for line in silent)


def test_prices_of_a_named_device_count() -> None:
    device = Device(framework="torch", version="2", kind="cuda", name="NVIDIA X1")
    save_calibration(replace(calibration(), device=device))
    model, x = nn.Linear(64, 64).eval(), torch.ones(2, 64)
    for name in ("nvidia x1", "cuda"):
        plan = amprewrite.inspect(model, args=(x,), device=name)
        assert "NVIDIA X1 (cuda)" in plan.prices
    assert "default" in amprewrite.inspect(model, args=(x,), device="cpu").prices


def test_an_unknown_device_is_refused() -> None:
    model, x = nn.Linear(64, 64).eval(), torch.ones(2, 64)
    with pytest.raises(UnsupportedError, match="unknown device 'abacus'; want cpu, cu"):
        amprewrite.inspect(model, args=(x,), device="abacus")
    with pytest.raises(UnsupportedError, match="unknown device 'tpu'"):
        amprewrite.convert(model, args=(x,), device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without one")
def test_a_cuda_device_is_described_without_a_gpu() -> None:
    assert describe(torch.device("cuda")).name == "cuda"
    assert {named(name).kind for name in KINDS} == {"cpu", "cuda"}
